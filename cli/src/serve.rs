//! `serve`: the lock service.

use std::time::Duration;

use fencelock_server::{Config, Server, Service};

use crate::args::Serve;
use crate::exit::{Failure, Outcome, code, say};
use crate::signals::Signals;
use crate::store;

pub(crate) async fn serve(args: Serve, store: Option<String>) -> Outcome {
    let drain = args.drain()?;
    if !args.listen.ip().is_loopback() && !args.insecure {
        let text = format!(
            "{} can be reached from other machines, and anybody there could take and release locks; listen on 127.0.0.1, \
             or allow it with --insecure",
            args.listen
        );
        return Err(Failure::new(code::CONFIG, text));
    }
    let mut signals = Signals::listen().map_err(|error| Failure::internal("signals", error))?;
    let url = store::store_url(store);
    let engine = tokio::select! {
        engine = fencelock::open_engine(&url) => engine?,
        // Nothing is served yet.
        signal = signals.next_end() => return Ok(code::SIGNAL.saturating_add(signal)),
    };
    let mut config = Config::default();
    config.advertise = args.advertise;
    config.hosts = args.hosts;
    let service = Service::new(engine.clone(), config)?;
    let purpose: fencelock::Purpose = args.purpose.into();
    for limit in &engine.promises().limits {
        // What endangers efficiency endangers correctness, too.
        if purpose == fencelock::Purpose::Correctness || limit.purpose == purpose {
            say(&format!("warning: {}; {}", limit.what, limit.change));
        }
    }
    let server = Server::start(args.listen, service).await;
    let server = server.map_err(|error| {
        Failure::new(code::CONFIG, format!("listening on {}: {error}", args.listen))
    })?;
    say(&format!("store {engine}"));
    say(&format!("listening on http://{}", server.address()));
    signals.next_end().await;
    say("draining: new claims are refused, and this ends when the last connection does");
    tokio::select! {
        _ = server.drain(drain) => {}
        _ = signals.next_end() => {}
    }
    let _ = tokio::time::timeout(Duration::from_secs(2), engine.close()).await;
    Ok(code::DONE)
}
