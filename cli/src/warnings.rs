//! The warnings of the service and of its store, as lines on standard error.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

/// Shows warnings and errors from now on. Those of other libraries are left out: anybody who connects can cause some of them.
pub(crate) fn show() {
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time();
    let own = Targets::new().with_target("fencelock", LevelFilter::WARN);
    let subscriber = tracing_subscriber::registry().with(own).with(lines);
    // This cannot fail: it is called once in a process, and nothing else sets a subscriber.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
