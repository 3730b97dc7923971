//! The baseline of the lock service: requests over a plain connection that touch no lock, two for each pair.

use fencelock::{BootInstant, Clock, Result, StoreUrl};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::failed;

/// The first replica of a store's URL.
#[derive(Clone)]
pub(crate) struct BareHttp {
    host: String,
}

impl BareHttp {
    pub(crate) fn open(url: &str) -> Result<Self> {
        let parts = StoreUrl::parse(url)?;
        if parts.scheme != "fencelock+http" {
            return Err(parts.refuse("the baseline does not support TLS"));
        }
        let host = parts.hosts.first().cloned().unwrap_or_default();
        let host = match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host,
            _ => format!("{host}:7420"),
        };
        Ok(Self { host })
    }

    /// Sends as many requests as locks would need until `until`. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let mut connection = self.connect().await?;
        let mut pairs = 0;
        for _ in names.iter().cycle() {
            if Clock::Boot.now() >= until {
                break;
            }
            self.ask(&mut connection).await?;
            self.ask(&mut connection).await?;
            pairs += 1;
        }
        Ok(pairs)
    }

    /// How long requests take, in nanoseconds.
    pub(crate) async fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let mut connection = self.connect().await?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = std::time::Instant::now();
            self.ask(&mut connection).await?;
            times.push(begun.elapsed().as_nanos() as f64);
        }
        Ok(times)
    }

    async fn connect(&self) -> Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect(&self.host).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        Ok(BufReader::new(stream))
    }

    async fn ask(&self, connection: &mut BufReader<TcpStream>) -> Result<()> {
        let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        connection
            .write_all(request.as_bytes())
            .await
            .map_err(lost)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).await.map_err(lost)?;
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse().map_err(lost)?;
            }
            if line.is_empty() {
                break;
            }
        }
        connection
            .read_exact(&mut vec![0; length])
            .await
            .map_err(lost)?;
        Ok(())
    }
}

fn lost(error: impl std::fmt::Display) -> fencelock::Error {
    failed("a plain request", error)
}
