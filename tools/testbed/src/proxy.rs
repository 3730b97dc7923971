//! A TCP proxy before a port of 127.0.0.1 that delays, holds, loses and cuts connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::failure::{Failure, Result};
use crate::port::Port;

/// Changes the first bytes of a client. Takes the bytes so far. Returns how many of them it replaces, and what the
/// server gets instead; `None` if it needs more bytes.
pub(crate) type Opening = fn(&[u8]) -> Option<(usize, Vec<u8>)>;

/// How a connection through the proxy begins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beginning {
    /// How the first bytes of the client change.
    pub(crate) opening: Option<Opening>,
    /// How long to try to reach a server that does not listen.
    pub(crate) patience: Duration,
}

/// What happens to the bytes and to the end of the stream in one direction. The order of bytes never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    #[default]
    Pass,
    /// They pass with this delay.
    Delay(Duration),
    /// They are held until another flow is set, even if the sender has closed the connection.
    Hold,
    /// They are lost. A connection that has lost bytes in one direction passes nothing more in that direction, like a
    /// real network.
    Lose,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    requests: Flow,
    answers: Flow,
    /// A change of this number resets the connections that began before.
    cut: u64,
    /// Requests are kept, to be sent again.
    keep: bool,
}

/// How many chunks of requests are kept.
const MOST_KEPT: usize = 200;

/// How long a repeated request waits for its answer.
const REPEATED: Duration = Duration::from_secs(2);

/// The servers behind a port. Each connection goes to the next one.
type Targets = Vec<SocketAddr>;

/// A chunk of requests and where it was sent.
type Kept = (SocketAddr, Vec<u8>);

#[derive(Debug, Default)]
struct Counters {
    kept: Mutex<Vec<Kept>>,
    accepted: AtomicU64,
    open: AtomicU64,
    requests: AtomicU64,
    answers: AtomicU64,
}

impl Counters {
    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum Order {
    Refuse(std::sync::mpsc::Sender<std::io::Result<()>>),
    Accept(std::sync::mpsc::Sender<std::io::Result<()>>),
    Repeat(Vec<Kept>),
}

/// A proxy on a thread of its own. It ends with all its connections when dropped.
#[derive(Debug)]
pub struct Proxy {
    ports: Vec<Port>,
    rules: watch::Sender<Rules>,
    orders: mpsc::UnboundedSender<Order>,
    counters: Arc<Counters>,
}

impl Proxy {
    /// Starts a proxy in front of `127.0.0.1:target` that passes everything.
    ///
    /// # Errors
    /// If there is no port or no thread for it.
    pub fn start(target: u16) -> Result<Self> {
        Self::start_all(&[target])
    }

    /// Starts a proxy for several targets with a port for each. The same faults apply to all.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub fn start_all(targets: &[u16]) -> Result<Self> {
        let here = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        let ways = targets.iter().map(|target| vec![here(target)]);
        Self::before(ways.collect(), Beginning::default())
    }

    /// Starts a proxy with one port for several targets, like a load balancer: each connection goes to the next target.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub fn balance(targets: &[u16]) -> Result<Self> {
        let here = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        let ways = vec![targets.iter().map(here).collect()];
        Self::before(ways, Beginning::default())
    }

    /// Starts a proxy in front of `127.0.0.1:target` whose connections begin like this.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub(crate) fn start_with(target: u16, beginning: Beginning) -> Result<Self> {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
        Self::before(vec![vec![target]], beginning)
    }

    /// Starts a proxy in front of a server that may be on another machine.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub fn to(target: SocketAddr) -> Result<Self> {
        Self::before(vec![vec![target]], Beginning::default())
    }

    /// Starts a proxy with a port for each of these lists of targets.
    fn before(targets: Vec<Targets>, beginning: Beginning) -> Result<Self> {
        let ports: Vec<Port> = targets
            .iter()
            .map(|_| Port::free())
            .collect::<Result<_>>()?;
        let (rules, seen) = watch::channel(Rules::default());
        let (orders, ordered) = mpsc::unbounded_channel();
        let counters = Arc::new(Counters::default());
        let numbers = ports.iter().map(Port::number);
        let ways: Vec<(u16, Targets)> = numbers.zip(targets).collect();
        let proxy = Self {
            ports,
            rules,
            orders,
            counters: Arc::clone(&counters),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(Failure::to("start a runtime for the proxy"))?;
        let serve = move || runtime.block_on(serve((ways, beginning), seen, ordered, counters));
        let thread = std::thread::Builder::new().name("proxy".to_owned());
        let started = thread.spawn(serve);
        started.map_err(Failure::to("start a thread for the proxy"))?;
        proxy.refuse(false)?;
        Ok(proxy)
    }

    /// The port to connect to; the first, if there are several.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.first().map_or(0, Port::number)
    }

    /// The ports to connect to, in the order of the targets.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.ports.iter().map(Port::number)
    }

    /// Sets what happens to bytes from clients to the server.
    pub fn requests(&self, flow: Flow) {
        self.rules.send_modify(|rules| rules.requests = flow);
    }

    /// Sets what happens to bytes from the server to clients.
    pub fn answers(&self, flow: Flow) {
        self.rules.send_modify(|rules| rules.answers = flow);
    }

    /// Sets both directions.
    pub fn both(&self, flow: Flow) {
        self.rules.send_modify(|rules| {
            rules.requests = flow;
            rules.answers = flow;
        });
    }

    /// Refuses new connections, or accepts them again. Open connections stay.
    ///
    /// # Errors
    /// If the port cannot be opened again.
    pub fn refuse(&self, refuse: bool) -> Result<()> {
        let (done, told) = std::sync::mpsc::channel();
        let order = if refuse {
            Order::Refuse(done)
        } else {
            Order::Accept(done)
        };
        let failed = format!("switch the proxy on port {}", self.port());
        self.orders.send(order).map_err(Failure::to(&failed))?;
        let switched = told.recv().map_err(Failure::to(&failed))?;
        switched.map_err(Failure::to(&failed))
    }

    /// Resets all connections, on both sides.
    pub fn reset(&self) {
        self.rules.send_modify(|rules| rules.cut += 1);
    }

    /// From now on keeps the requests that pass, for [`Proxy::repeat`] or [`Proxy::take_kept`].
    pub fn keep(&self) {
        self.rules.send_modify(|rules| rules.keep = true);
    }

    /// Sends the kept chunks once more, each over its own connection, like a network or a proxy that repeats requests.
    /// The answers are discarded. For protocols in which a chunk is a request.
    ///
    /// # Errors
    /// If the proxy has ended.
    pub fn repeat(&self) -> Result<()> {
        self.rules.send_modify(|rules| rules.keep = false);
        let kept = std::mem::take(&mut *self.counters.kept());
        let failed = format!("repeat what passed the proxy on port {}", self.port());
        self.orders
            .send(Order::Repeat(kept))
            .map_err(Failure::to(failed))
    }

    /// Stops keeping requests, and returns the kept chunks in their order.
    #[must_use]
    pub fn take_kept(&self) -> Vec<Vec<u8>> {
        self.rules.send_modify(|rules| rules.keep = false);
        let kept = std::mem::take(&mut *self.counters.kept());
        kept.into_iter().map(|(_, chunk)| chunk).collect()
    }

    /// The number of connections so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.counters.accepted.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.counters.open.load(Ordering::Relaxed)
    }

    /// The number of bytes from clients so far.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.counters.requests.load(Ordering::Relaxed)
    }

    /// The number of bytes from the server so far.
    #[must_use]
    pub fn answer_bytes(&self) -> u64 {
        self.counters.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The port is closed when this returns; the connections end soon after. Fails only if the thread has ended.
        drop(self.refuse(true));
    }
}

/// Accepts connections and executes orders until the proxy is dropped.
async fn serve(
    (ways, beginning): (Vec<(u16, Targets)>, Beginning),
    rules: watch::Receiver<Rules>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    counters: Arc<Counters>,
) {
    let mut listeners: Vec<(TcpListener, Targets)> = Vec::new();
    loop {
        let accepted = std::future::poll_fn(|context| {
            for (listener, targets) in &mut listeners {
                if let Poll::Ready(accepted) = listener.poll_accept(context) {
                    targets.rotate_left(1);
                    return Poll::Ready((accepted, targets[0]));
                }
            }
            Poll::Pending
        });
        // A failed send means that the handle no longer waits for the answer.
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                None => return,
                Some(Order::Refuse(done)) => {
                    listeners.clear();
                    drop(done.send(Ok(())));
                }
                Some(Order::Accept(done)) => {
                    let bound = match listeners.is_empty() {
                        true => listen(&ways).await.map(|bound| listeners = bound),
                        false => Ok(()),
                    };
                    drop(done.send(bound));
                }
                Some(Order::Repeat(kept)) => {
                    for (target, chunk) in kept {
                        tokio::spawn(repeat(target, chunk));
                    }
                }
            },
            (accepted, target) = accepted => {
                // The client has closed the connection before it was accepted.
                if let Ok((client, _)) = accepted {
                    counters.accepted.fetch_add(1, Ordering::Relaxed);
                    let counters = Arc::clone(&counters);
                    // Count it now: a connection that is cut before it reaches the server counts, too.
                    let began = rules.borrow().cut;
                    let ends = (client, target, beginning);
                    tokio::spawn(connection(ends, began, rules.clone(), counters));
                }
            }
        }
    }
}

/// Sends a chunk, and waits for an answer. Errors are ignored, since the server may be down.
async fn repeat(target: SocketAddr, chunk: Vec<u8>) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    if server.write_all(&chunk).await.is_ok() {
        let mut answer = [0; 1024];
        drop(tokio::time::timeout(REPEATED, server.read(&mut answer)).await);
    }
}

async fn listen(ways: &[(u16, Targets)]) -> std::io::Result<Vec<(TcpListener, Targets)>> {
    let mut listeners = Vec::new();
    for (port, targets) in ways {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?;
        listeners.push((listener, targets.clone()));
    }
    Ok(listeners)
}

/// One connection from its beginning to its end, or until it is cut.
async fn connection(
    (mut client, target, beginning): (TcpStream, SocketAddr, Beginning),
    began: u64,
    rules: watch::Receiver<Rules>,
    counters: Arc<Counters>,
) {
    let Ok(mut server) = reach(target, beginning.patience).await else {
        // No server listens: the client gets a reset, as without a proxy.
        drop(client.set_zero_linger());
        return;
    };
    for stream in [&client, &server] {
        // Without this option a small packet may wait for the previous one, which is only a delay.
        drop(stream.set_nodelay(true));
    }
    counters.open.fetch_add(1, Ordering::Relaxed);
    let mut cut = rules.clone();
    let (mut from_client, to_client) = client.split();
    let (from_server, mut to_server) = server.split();
    let keep = |rules: &Rules, chunk: &[u8]| {
        if !rules.keep {
            return;
        }
        let mut kept = counters.kept();
        if kept.len() < MOST_KEPT {
            kept.push((target, chunk.to_vec()));
        }
    };
    let seen = rules.clone();
    let requests = async {
        if let Some(opening) = beginning.opening {
            open(&mut from_client, &mut to_server, opening).await;
        }
        let flow = |rules: &Rules| rules.requests;
        let counted = (&counters.requests, keep);
        direction(from_client, to_server, seen, flow, counted).await;
    };
    let answers = direction(
        from_server,
        to_client,
        rules,
        |rules| rules.answers,
        (&counters.answers, |_: &Rules, _: &[u8]| {}),
    );
    let cut = tokio::select! {
        _ = async { tokio::join!(requests, answers) } => false,
        _ = cut.wait_for(|rules| rules.cut != began) => true,
    };
    if cut {
        for stream in [&client, &server] {
            // Dropping the connection resets it. Fails only on a connection that is already reset.
            drop(stream.set_zero_linger());
        }
    }
    counters.open.fetch_sub(1, Ordering::Relaxed);
}

/// Connects to the server. Tries again within this time if the server does not listen yet.
async fn reach(target: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(target).await {
            Err(_) if begun.elapsed() < patience => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            connected => return connected,
        }
    }
}

/// Passes on the first bytes of a client. If the connection ends meanwhile, [`direction`] sees that, too.
async fn open(from: &mut ReadHalf<'_>, to: &mut WriteHalf<'_>, opening: Opening) {
    let mut bytes = Vec::new();
    loop {
        if let Some((count, mut instead)) = opening(&bytes) {
            instead.extend_from_slice(&bytes[count..]);
            drop(to.write_all(&instead).await);
            return;
        }
        if from.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// Copies one direction through a queue, so that a held direction looks like a slow network to its sender.
async fn direction(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut rules: watch::Receiver<Rules>,
    flow: fn(&Rules) -> Flow,
    (bytes, seen): (&AtomicU64, impl Fn(&Rules, &[u8])),
) {
    let now = rules.clone();
    // `None` is the end of the stream.
    let (queue, mut queued) = mpsc::unbounded_channel::<(Instant, Option<Vec<u8>>)>();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            // An error ends the stream like a regular end.
            let count = from.read(&mut buffer).await.unwrap_or(0);
            let chunk = (count > 0).then(|| buffer[..count].to_vec());
            seen(&now.borrow(), &buffer[..count]);
            bytes.fetch_add(count as u64, Ordering::Relaxed);
            if queue.send((Instant::now(), chunk)).is_err() || count == 0 {
                return;
            }
        }
    };
    let write = async move {
        while let Some((came, chunk)) = queued.recv().await {
            if !may_pass(came, &mut rules, flow).await {
                // The bytes are lost: this direction stays silent until the connection is cut or the proxy is dropped.
                std::future::pending::<()>().await;
            }
            let written = match chunk {
                Some(chunk) => to.write_all(&chunk).await,
                None => to.shutdown().await,
            };
            if written.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}

/// Waits until a chunk that arrived at `came` may pass. `false`: the chunk is lost.
async fn may_pass(
    came: Instant,
    rules: &mut watch::Receiver<Rules>,
    flow: fn(&Rules) -> Flow,
) -> bool {
    loop {
        let now = flow(&rules.borrow_and_update());
        let due = match now {
            Flow::Pass => return true,
            Flow::Lose => return false,
            Flow::Delay(delay) => Some(came + delay),
            Flow::Hold => None,
        };
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => return true,
            changed = rules.changed() => if changed.is_err() {
                return false;
            }
        }
    }
}
