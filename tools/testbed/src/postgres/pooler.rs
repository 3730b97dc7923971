//! A PgBouncer in front of a server.

use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::programs::write;
use super::server::{Postgres, START};
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::port::Port;
use crate::process::{Process, Streams, program};

/// A running PgBouncer; killed when dropped.
#[derive(Debug)]
pub struct Pooler {
    _process: Process,
    port: Port,
    _dir: Dir,
}

impl Pooler {
    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}

impl Postgres {
    /// Starts a PgBouncer in front of this server, with this `pool_mode`, for its database `lock`.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub fn pooler(&self, mode: &str) -> Result<Pooler> {
        let pgbouncer = program("pgbouncer", "pgbouncer")?;
        let dir = Dir::new("pgbouncer")?;
        self.programs.give(dir.path())?;
        let port = Port::free()?;
        let config = dir.join("pgbouncer.ini");
        let lines = [
            "[databases]".to_owned(),
            format!("lock = host=127.0.0.1 port={}", self.port()),
            "[pgbouncer]".to_owned(),
            format!("listen_port = {}", port.number()),
            "listen_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = any".to_owned(),
            format!("pool_mode = {mode}"),
        ];
        // With `any`, PgBouncer ignores the client's user and needs one for the server.
        let lines = lines.join("\n").replace("host=", "user=lock host=");
        write(&config, &lines)?;
        let mut command = self.programs.command(&pgbouncer.to_string_lossy());
        command.arg(&config).current_dir(dir.path());
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::null(),
        };
        let process = Process::spawn(&command, streams)?;
        let begin = Instant::now();
        while TcpStream::connect(port.address()).is_err() {
            if process.ended().is_some() || begin.elapsed() > START {
                return Err(Failure::new("pgbouncer does not come up"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Pooler {
            _process: process,
            port,
            _dir: dir,
        })
    }
}
