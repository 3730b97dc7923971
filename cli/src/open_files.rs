//! How many files the service may have open. Each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::say;

/// For what is open beside the connections of clients: those to the store, listeners and files.
const OTHERS: u64 = 100;

/// Raises the soft limit to the hard one, and warns if that is too few for so many connections.
pub(crate) fn raise_limit(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    let limit = match setrlimit(Resource::Nofile, all) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    let needed = OTHERS.saturating_add(connections as u64);
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        say(&format!(
            "warning: this process may have {limit} files open, but needs {needed} to serve {connections} connections; \
             raise the hard limit of open files (LimitNOFILE= of systemd), or lower connections of [serve.limits]"
        ));
    }
}
