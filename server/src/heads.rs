//! The heads of requests: how long each may take to arrive. hyper has one timeout for heads and for idle connections. An idle
//! connection may take longer than a head.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencelock_core::support::Mutex;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What a connection does at the moment, as far as heads are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// A head is arriving since then.
    Head(Instant),
    /// A request is being served. Bytes that arrive meanwhile are its body, or a later request sent early.
    Serving,
    /// The connection is idle.
    Idle,
    /// The connection speaks HTTP/2, where arriving bytes are not always a head.
    Multiplexed,
}

/// The state of one connection's heads. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Heads(Arc<Mutex<Doing>>);

impl Heads {
    /// For a new connection: its first head is due from now on.
    pub(crate) fn due() -> Self {
        Self(Arc::new(Mutex::new(Doing::Head(Instant::now()))))
    }

    /// Wraps the stream, to notice the first bytes of a head.
    pub(crate) fn watch<S>(&self, stream: S) -> Watched<S> {
        Watched {
            stream,
            heads: self.clone(),
        }
    }

    /// Notes that a head has arrived.
    pub(crate) fn arrived(&self, version: http::Version) -> Serving {
        *self.0.lock() = match version {
            http::Version::HTTP_2 => Doing::Multiplexed,
            _ => Doing::Serving,
        };
        Serving(self.clone())
    }

    fn bytes_came(&self) {
        let mut doing = self.0.lock();
        if *doing == Doing::Idle {
            *doing = Doing::Head(Instant::now());
        }
    }

    /// Ready when a head takes too long. Must be polled after the connection.
    pub(crate) fn poll_late(
        &self,
        within: Duration,
        mut timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Doing::Head(since) = *self.0.lock() else {
            return Poll::Pending;
        };
        let due = since + within;
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.poll(cx)
    }
}

/// A request that is being served, until this is dropped.
pub(crate) struct Serving(Heads);

impl Serving {
    /// Makes the body of the answer. The request ends with that body.
    pub(crate) fn with<B>(self, body: B) -> Answer<B> {
        Answer {
            body,
            _serving: self,
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut doing = self.0.0.lock();
        if *doing == Doing::Serving {
            *doing = Doing::Idle;
        }
    }
}

/// The body of an answer.
pub(crate) struct Answer<B> {
    body: B,
    _serving: Serving,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that reports when bytes arrive.
pub(crate) struct Watched<S> {
    stream: S,
    heads: Heads,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.heads.bytes_came();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
