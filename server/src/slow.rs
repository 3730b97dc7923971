//! Slow peers: how long the head of a request may take to arrive, how long a connection may be idle, and how long the peer may
//! leave an answer unread. hyper has one timeout for heads and idle time of HTTP/1, and none for the rest.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use fencelock_core::support::Mutex;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::config::Limits;

/// The slowest peer that reads a long answer, in bytes per second.
const SLOWEST: f64 = 65_536.0;

/// What a connection does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// A head is arriving since then.
    Head(Instant),
    /// A request is being served. Bytes that arrive meanwhile are its body, or a later request sent early.
    Serving,
    /// The connection is idle. hyper ends it.
    Idle,
    /// The connection speaks HTTP/2, where arriving bytes are not always a head. So many requests are being served; the last one
    /// came or ended then.
    Multiplexed(usize, Instant),
}

#[derive(Debug)]
struct State {
    doing: Doing,
    /// Since when bytes wait until the peer reads.
    unread: Option<Instant>,
    /// The answers of HTTP/2 of which the peer has not accepted a part, and since when. There a peer may refuse an answer while the
    /// connection goes on.
    unaccepted: HashMap<u64, Instant>,
    answers: u64,
}

/// What a peer is late with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    Head,
    /// The next request of HTTP/2.
    Request,
    /// Reading an answer.
    Reading,
}

/// What one connection waits for. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Slow(Arc<Mutex<State>>);

impl Slow {
    /// For a new connection: its first head is due from now on.
    pub(crate) fn due() -> Self {
        let doing = Doing::Head(Instant::now());
        Self(Arc::new(Mutex::new(State {
            doing,
            unread: None,
            unaccepted: HashMap::new(),
            answers: 0,
        })))
    }

    /// Wraps the stream, to notice the first bytes of a head, and bytes that the peer does not read.
    pub(crate) fn watch<S>(&self, stream: S) -> Watched<S> {
        Watched {
            stream,
            slow: self.clone(),
        }
    }

    /// Notes that a head has arrived.
    pub(crate) fn arrived(&self, version: http::Version) -> Serving {
        let mut state = self.0.lock();
        state.answers += 1;
        let number = state.answers;
        let doing = &mut state.doing;
        *doing = match (version, *doing) {
            (http::Version::HTTP_2, Doing::Multiplexed(count, _)) => {
                Doing::Multiplexed(count + 1, Instant::now())
            }
            (http::Version::HTTP_2, _) => Doing::Multiplexed(1, Instant::now()),
            _ => Doing::Serving,
        };
        let is_multiplexed = version == http::Version::HTTP_2;
        Serving {
            slow: self.clone(),
            number: is_multiplexed.then_some(number),
        }
    }

    fn bytes_came(&self) {
        let doing = &mut self.0.lock().doing;
        if *doing == Doing::Idle {
            *doing = Doing::Head(Instant::now());
        }
    }

    /// Notes whether bytes could be written.
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        let unread = &mut self.0.lock().unread;
        match written {
            Poll::Ready(_) => *unread = None,
            Poll::Pending => *unread = unread.or_else(|| Some(Instant::now())),
        }
        written
    }

    /// Notes that an idle peer was asked to end the connection: it has the same time once more.
    pub(crate) fn asked_to_end(&self) {
        if let Doing::Multiplexed(_, last) = &mut self.0.lock().doing {
            *last = Instant::now();
        }
    }

    /// Ready when the peer is late. Must be polled after the connection.
    pub(crate) fn poll_late(
        &self,
        limits: &Limits,
        mut timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Late> {
        let (doing, unread) = {
            let state = self.0.lock();
            let unaccepted = state.unaccepted.values().min().copied();
            (
                state.doing,
                state.unread.into_iter().chain(unaccepted).min(),
            )
        };
        let reading = unread.map(|since| (since + limits.unread_timeout, Late::Reading));
        let request = match doing {
            Doing::Head(since) => Some((since + limits.header_timeout, Late::Head)),
            Doing::Multiplexed(0, since) => Some((since + limits.idle_timeout, Late::Request)),
            Doing::Serving | Doing::Idle | Doing::Multiplexed(..) => None,
        };
        let first = reading
            .into_iter()
            .chain(request)
            .min_by_key(|(due, _)| *due);
        let Some((due, late)) = first else {
            return Poll::Pending;
        };
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.poll(cx).map(|()| late)
    }
}

/// A request that is being served, until this is dropped.
pub(crate) struct Serving {
    slow: Slow,
    /// Of HTTP/2.
    number: Option<u64>,
}

impl Serving {
    /// Makes the body of the answer. The request ends with that body.
    pub(crate) fn with<B>(self, body: B) -> Answer<B> {
        Answer {
            body,
            serving: self,
        }
    }

    /// Notes a part of the answer that hyper got. It asks for the next one when the peer has accepted this one.
    fn gave(&self, bytes: Option<usize>) {
        let Some(number) = self.number else {
            return;
        };
        let unaccepted = &mut self.slow.0.lock().unaccepted;
        match bytes {
            // A long part takes time.
            Some(bytes) => {
                let time = Duration::from_secs_f64(bytes as f64 / SLOWEST);
                unaccepted.insert(number, Instant::now() + time)
            }
            None => unaccepted.remove(&number),
        };
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.gave(None);
        let doing = &mut self.slow.0.lock().doing;
        match doing {
            Doing::Serving => *doing = Doing::Idle,
            Doing::Multiplexed(count, last) => {
                *count = count.saturating_sub(1);
                *last = Instant::now();
            }
            Doing::Head(_) | Doing::Idle => {}
        }
    }
}

/// The body of an answer.
pub(crate) struct Answer<B> {
    body: B,
    serving: Serving,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.serving.gave(match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref().map(Buf::remaining),
            _ => None,
        });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that reports when bytes arrive, and when none can be written.
pub(crate) struct Watched<S> {
    stream: S,
    slow: Slow,
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
            self.slow.bytes_came();
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
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.slow.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.slow.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.slow.wrote(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
