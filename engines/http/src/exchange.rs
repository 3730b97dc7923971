//! One connection to a replica, and a request with its answer over it. The caller's task drives the connection. A separate task
//! for each connection would be woken for each request, and would then wake the caller for its answer.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use fencelock_wire::{LINES, REPLICA};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::rt::{Read, Write};

/// More bytes than the longest line of an answer has.
const MOST_LINE: usize = 64 << 10;

pub(crate) type Body = Full<Bytes>;

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// A connection without a request.
pub(crate) struct Connection {
    sender: SendRequest<Body>,
    /// `None` once the connection has ended.
    driver: Option<Driver>,
}

impl Connection {
    pub(crate) async fn new<T>(stream: T) -> hyper::Result<Self>
    where
        T: Read + Write + Unpin + Send + 'static,
    {
        let (sender, driver) = handshake(stream).await?;
        let driver: Driver = Box::pin(driver);
        let driver = Some(driver);
        Ok(Self { sender, driver })
    }

    /// Whether it is open, as far as this process has heard.
    pub(crate) fn is_open(&mut self) -> bool {
        turn(&mut self.driver, &mut Context::from_waker(Waker::noop()));
        self.driver.is_some()
    }

    /// Sends a request. The error has the request if nothing of it was sent.
    pub(crate) async fn send(
        mut self,
        request: Request<Body>,
    ) -> Result<Exchange, TrySendError<Request<Body>>> {
        // A connection that has ended is not ready. Sending then returns the error.
        let _ = drive(&mut self.driver, self.sender.ready()).await;
        let answer = self.sender.try_send_request(request);
        let response = drive(&mut self.driver, answer).await?;
        Ok(Exchange {
            connection: self,
            response,
        })
    }
}

/// A request whose answer has begun. If it is dropped, its connection ends.
pub(crate) struct Exchange {
    connection: Connection,
    response: Response<Incoming>,
}

impl Exchange {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Whether the answer comes line by line.
    pub(crate) fn is_in_lines(&self) -> bool {
        let media = self.response.headers().get(CONTENT_TYPE);
        media.is_some_and(|media| media == LINES)
    }

    /// The id of the replica, as the answer says.
    pub(crate) fn replica(&self) -> Option<HeaderValue> {
        self.response.headers().get(REPLICA).cloned()
    }

    /// More of the body; `None` at its end.
    pub(crate) async fn more(&mut self) -> Option<hyper::Result<Bytes>> {
        loop {
            let frame = self.response.frame();
            match drive(&mut self.connection.driver, frame).await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(Ok(data)),
                    // Trailers, which the service does not send.
                    Err(_) => continue,
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The connection, for the next request. The whole body must have been read.
    pub(crate) fn end(self) -> Connection {
        self.connection
    }
}

/// An answer that is read line by line.
pub(crate) struct Lines {
    exchange: Exchange,
    read: BytesMut,
}

impl Lines {
    pub(crate) fn of(exchange: Exchange) -> Self {
        let read = BytesMut::new();
        Self { exchange, read }
    }

    pub(crate) fn replica(&self) -> Option<HeaderValue> {
        self.exchange.replica()
    }

    /// The next line; `None` at the end of the answer. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, LineError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.read.split_to(end + 1).freeze()));
            }
            if self.read.len() > MOST_LINE {
                return Err(LineError::TooLong);
            }
            match self.exchange.more().await {
                Some(Ok(data)) => self.read.extend_from_slice(&data),
                Some(Err(error)) => return Err(LineError::Http(error)),
                None => return Ok(None),
            }
        }
    }

    /// The exchange, after the last line.
    pub(crate) fn into_exchange(self) -> Exchange {
        self.exchange
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

/// Why there is no next line.
#[derive(Debug)]
pub(crate) enum LineError {
    Http(hyper::Error),
    TooLong,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(error) => fmt::Display::fmt(error, f),
            Self::TooLong => write!(f, "a line is longer than {MOST_LINE} bytes"),
        }
    }
}

/// Runs `work`, and meanwhile drives the connection.
async fn drive<T>(driver: &mut Option<Driver>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        turn(driver, context);
        work.as_mut().poll(context)
    })
    .await
}

fn turn(driver: &mut Option<Driver>, context: &mut Context<'_>) {
    if let Some(open) = driver
        && open.as_mut().poll(context).is_ready()
    {
        // Dropping the driver tells those who wait that the connection has ended.
        *driver = None;
    }
}
