//! A `fencelock serve` of its own for a test, and requests to it over sockets.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::fixture::{Fixture, Ran, Running, TIMEOUT, until};

/// A service that listens; killed when dropped.
pub(crate) struct Service {
    running: Running,
    address: String,
}

/// An answer of the service.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Service {
    /// Starts it on the fixture's store and a free port.
    pub(crate) fn start(fixture: &Fixture, options: &[&str]) -> Self {
        let mut words = vec!["serve", "--listen", "127.0.0.1:0"];
        words.extend(options);
        Self::run(fixture, &words)
    }

    /// Starts it with these arguments. Its messages go to the file `serve` of the fixture.
    pub(crate) fn run(fixture: &Fixture, words: &[&str]) -> Self {
        Self::run_after(fixture, "", words)
    }

    /// The same, after a shell has done this.
    pub(crate) fn run_after(fixture: &Fixture, before: &str, words: &[&str]) -> Self {
        // Remove the messages of an earlier service, so that its address is not taken for this one.
        let _ = std::fs::remove_file(fixture.path("serve"));
        let to_file = format!("{before}\nexec \"$@\" 2> serve");
        let start = [
            "env",
            "--default-signal",
            "sh",
            "-c",
            to_file.as_str(),
            "sh",
            env!("CARGO_BIN_EXE_fencelock"),
        ];
        let running = Running::start(fixture.command_through(&start, words));
        let listening = || {
            let said = fixture.read("serve");
            let (_, after) = said.split_once("listening on http")?;
            let (_, after) = after.split_once("://")?;
            let (address, _) = after.split_once('\n')?;
            Some(address.to_owned())
        };
        until("it listens", || listening().is_some());
        let address = listening().unwrap();
        Self { running, address }
    }

    /// Its address and port.
    #[cfg(any(feature = "redis", feature = "tls"))]
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its URL for `--store`.
    pub(crate) fn store(&self) -> String {
        format!("fencelock+http://{}", self.address)
    }

    /// The answer that a plain client gets to a request with these headers, over its own connection.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.address
        );
        for header in headers {
            request += &format!("{header}\r\n");
        }
        if !body.is_empty() {
            let length = body.len();
            request += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        }
        write!(socket, "{request}\r\n{body}").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        Answer { status, body }
    }

    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Ran {
        self.running.end()
    }
}
