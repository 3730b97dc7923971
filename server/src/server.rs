//! The listener: connections, their limits, and their end.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use fencelock_core::CancellationToken;
use futures_util::{FutureExt, TryFutureExt};
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower_service::Service as _;

use crate::caller::Origin;
use crate::config::Limits;
use crate::direct::Direct;
use crate::replica::Replica;
use crate::reserve::{Permit, Room};
use crate::service::Service;
use crate::slow::{Late, Slow};
use crate::tls::Tls;

/// What HTTP/1 reads ahead at most, and so the longest head of a request, in bytes. A head that is longer than the limits, but
/// not longer than this, is answered with a problem.
const READ_AHEAD: usize = 64 << 10;

/// How many requests one HTTP/2 connection may have open.
const STREAMS: u32 = 256;

/// The pause after an error of `accept`, such as too many open files.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// A replica on a socket. Dropping it closes the listener and every connection at once, like a crash.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    service: Service,
    /// Cancelled when the connections must end at once.
    killed: CancellationToken,
    /// How many connections are open.
    open: watch::Receiver<usize>,
    accepting: JoinHandle<()>,
    tls: Option<Arc<Tls>>,
}

impl Server {
    /// Listens on an address. Port 0 means a free port.
    ///
    /// # Errors
    /// It cannot listen on the address.
    pub async fn start(address: SocketAddr, service: Service) -> io::Result<Self> {
        Self::start_on(TcpListener::bind(address).await?, service)
    }

    /// Serves on a listener.
    ///
    /// # Errors
    /// The listener has no address, or the files of TLS cannot be used.
    pub fn start_on(listener: TcpListener, service: Service) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let tls = service.tls().map(Tls::open).transpose();
        let tls = tls.map_err(io::Error::other)?.map(Arc::new);
        let direct = Some(Arc::clone(service.replica()));
        let served = (service.router(), direct);
        Ok(Self::serve(listener, address, served, service, tls))
    }

    /// Listens for operators: `/metrics`, `/healthz` and `/readyz`, in plain HTTP, for everybody who can reach the address.
    ///
    /// # Errors
    /// It cannot listen on the address.
    pub async fn start_admin(address: SocketAddr, service: Service) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let served = (service.admin_router(), None);
        Ok(Self::serve(listener, address, served, service, None))
    }

    fn serve(
        listener: TcpListener,
        address: SocketAddr,
        (router, direct): (Router, Option<Arc<Replica>>),
        service: Service,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        service.start();
        let limits = service.limits();
        let killed = CancellationToken::new();
        let (count, open) = watch::channel(0);
        let listening = Listening {
            router,
            direct,
            replica: Arc::clone(service.replica()),
            http: http(limits),
            room: Room::new(limits.connections),
            draining: service.draining(),
            killed: killed.clone(),
            open: count,
            tls: tls.clone(),
            limits: limits.clone(),
        };
        if let Some(tls) = &tls {
            let reading = read_again(Arc::downgrade(tls), limits.tls_reload);
            tokio::spawn(reading);
        }
        let accepting = tokio::spawn(listening.run(listener));
        Self {
            address,
            service,
            killed,
            open,
            accepting,
            tls,
        }
    }

    /// Reads the files of TLS again, for new connections.
    ///
    /// # Errors
    /// [`Error::ConfigFile`](fencelock_core::Error::ConfigFile) if they cannot be used; then the old ones stay.
    pub fn reload_tls(&self) -> fencelock_core::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.reload())
    }

    /// The address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The replica.
    #[must_use]
    pub const fn service(&self) -> &Service {
        &self.service
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.open.borrow()
    }

    /// Ends in good order. New claims are refused, and open polls are answered at once. Every connection ends after its answer.
    /// Renewals and releases over new connections are served until no connection is left, or the time is over. On a store that
    /// is bound to replicas it also waits until no claim is left. After the time it withdraws those in which no client believes.
    /// A hold in which its client may still believe stays, and the store frees it when its lease is over, as after a crash: so
    /// close the engine after this, which gives no hold back. Returns how many holds end with this replica.
    pub async fn drain(mut self, time: Duration) -> usize {
        self.service.refuse_new();
        let none = async {
            self.service.no_claim_left().await;
            let _ = self.open.wait_for(|open| *open == 0).await;
        };
        let _ = tokio::time::timeout(time, none).await;
        self.service.end_claims().await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        self.killed.cancel();
    }
}

/// The settings of connections.
fn http(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        // This timeout also covers idle time. `Slow` limits the time of a head.
        .header_read_timeout(limits.idle_timeout)
        // 100 headers are read, which is more than the limits, for the reason of `READ_AHEAD`. To allow more would cost memory
        // for each request.
        .max_buf_size(READ_AHEAD);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(READ_AHEAD as u32)
        .keep_alive_interval(limits.idle_timeout / 2);
    http
}

/// Reads the files of TLS again and again, because nothing reports that a certificate was renewed.
async fn read_again(tls: Weak<Tls>, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        let Some(tls) = tls.upgrade() else { return };
        if let Err(error) = tls.reload() {
            tracing::error!(%error, "the files of TLS cannot be used; those of before stay");
        }
    }
}

/// The listener, which accepts connections.
struct Listening {
    router: Router,
    direct: Option<Arc<Replica>>,
    http: auto::Builder<TokioExecutor>,
    replica: Arc<Replica>,
    room: Room,
    draining: CancellationToken,
    killed: CancellationToken,
    open: watch::Sender<usize>,
    tls: Option<Arc<Tls>>,
    limits: Limits,
}

impl Listening {
    async fn run(mut self, listener: TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            if self.draining.is_cancelled() {
                self.http.http1().keep_alive(false);
            }
            match self.room.permit(peer.ip(), &self.replica.renewers) {
                Permit::Refused => tracing::debug!(%peer, "too many connections; one is closed"),
                permit => self.serve(stream, peer, permit),
            }
        }
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr, permit: Permit) {
        // A hand-off is one small answer; waiting for more to send would delay it.
        let _ = stream.set_nodelay(true);
        let connection = Connection {
            router: self.router.clone(),
            direct: self.direct.clone(),
            http: self.http.clone(),
            local: stream.local_addr().ok(),
            peer,
            limits: self.limits.clone(),
            killed: self.killed.clone(),
            // A connection that comes while draining serves one request.
            drains: (!self.draining.is_cancelled()).then(|| self.draining.clone()),
        };
        let (tls, killed) = (self.tls.clone(), self.killed.clone());
        let (count, handshake_within) = (self.open.clone(), self.limits.handshake_timeout);
        tokio::spawn(async move {
            let served = async {
                let permit = match permit {
                    Permit::Now(permit) => Ok(permit),
                    Permit::Later(_waiting, room) => room.acquire_owned().await,
                    Permit::Refused => return,
                };
                let Ok(permit) = permit else { return };
                let _open = Open::new(&count, permit);
                match tls {
                    None => connection.serve(stream, None).await,
                    Some(tls) => match timeout(handshake_within, tls.accept(stream)).await {
                        Ok(Ok((stream, name))) => connection.serve(stream, name).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                        Err(_) => tracing::debug!(%peer, "a handshake took too long"),
                    },
                }
            };
            tokio::select! {
                biased;
                () = killed.cancelled() => {}
                () = served => {}
            }
        });
    }
}

/// One connection.
struct Connection {
    router: Router,
    /// The replica, if the most frequent requests are served without the router.
    direct: Option<Arc<Replica>>,
    http: auto::Builder<TokioExecutor>,
    local: Option<SocketAddr>,
    peer: SocketAddr,
    /// When this is cancelled, no request is answered.
    killed: CancellationToken,
    /// When this is cancelled, the connection ends after its answers.
    drains: Option<CancellationToken>,
    limits: Limits,
}

impl Connection {
    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        name: Option<Arc<str>>,
    ) {
        let (router, peer, killed) = (self.router, self.peer, self.killed);
        let origin = Origin::new(peer, self.local, name);
        let slow = Slow::due();
        let stream = TokioIo::new(slow.watch(stream));
        let arriving = slow.clone();
        let (direct, origin) = (self.direct, Arc::new(origin));
        let service = service_fn(move |request: Request<Incoming>| {
            let serving = arriving.arrived(request.version());
            if killed.is_cancelled() {
                // The request came after the end, which this task has not noticed yet.
                return std::future::pending().boxed();
            }
            let direct = direct.as_ref();
            let direct = direct.and_then(|replica| Some((replica, Direct::of(&request)?)));
            let answered = |answer: Response| answer.map(|body| serving.with(body));
            match direct {
                Some((replica, direct)) => {
                    let (replica, origin) = (Arc::clone(replica), Arc::clone(&origin));
                    let answer = direct.serve(replica, origin, request);
                    answer.map_ok(answered).boxed()
                }
                None => {
                    let mut request = request.map(Body::new);
                    request.extensions_mut().insert(Arc::clone(&origin));
                    router.clone().call(request).map_ok(answered).boxed()
                }
            }
        });
        let connection = self.http.serve_connection(stream, service);
        tokio::pin!(connection);
        let mut drains = self.drains;
        let (limits, mut asked_to_end) = (self.limits, false);
        let timer = sleep(limits.header_timeout);
        tokio::pin!(timer);
        loop {
            let draining = async {
                match &drains {
                    Some(draining) => draining.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            let late = poll_fn(|cx| slow.poll_late(&limits, timer.as_mut(), cx));
            let ended = tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                // Its state changes only while the connection is polled, which comes before this.
                late = late => match late {
                    // A request may be on its way. The client learns that it was not processed.
                    Late::Request if !asked_to_end => {
                        asked_to_end = true;
                        slow.asked_to_end();
                        connection.as_mut().graceful_shutdown();
                        continue;
                    }
                    late => {
                        tracing::debug!(%peer, ?late, "a connection with a slow peer is closed");
                        return;
                    }
                },
                () = draining => {
                    drains = None;
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            }
            return;
        }
    }
}

/// An open connection, counted until it is dropped.
struct Open {
    count: watch::Sender<usize>,
    _permit: OwnedSemaphorePermit,
}

impl Open {
    fn new(count: &watch::Sender<usize>, permit: OwnedSemaphorePermit) -> Self {
        count.send_modify(|open| *open += 1);
        Self {
            count: count.clone(),
            _permit: permit,
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.send_modify(|open| *open -= 1);
    }
}
