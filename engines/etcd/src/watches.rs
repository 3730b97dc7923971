//! All watches of a connection, on one stream: a stream of its own for each waiter would cost more than its wait.
//!
//! A watch on one key is kept for a while after its end. Whoever waits for a lock again and again mostly stands behind the
//! same client, whose keys have the same names each time; then nothing is asked of the server.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error as Driver, WatchClient, WatchOptions, WatchRequestSender, WatchResponse, WatchStream,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// For how long a watch is kept that nobody awaits.
const KEPT: Duration = Duration::from_secs(1);

/// How many of these are kept at most.
const MOST: usize = 64;

/// What the stream's task is told.
#[derive(Debug)]
enum Order {
    Open(Opening),
    Cancel(i64),
}

/// A watch that is wanted.
#[derive(Debug)]
struct Opening {
    key: Vec<u8>,
    options: WatchOptions,
    keep: bool,
    opened: oneshot::Sender<Result<Watch, Driver>>,
}

/// Opens watches on the stream, whose task runs as long as this or a watch is kept.
#[derive(Debug)]
pub(crate) struct Watches {
    orders: mpsc::UnboundedSender<Order>,
}

/// One watch. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    /// It sees everything after this revision,
    pub(crate) from: i64,
    /// and saw something last at this one, perhaps before it was asked for; 0 if it did not.
    pub(crate) last: i64,
    told: mpsc::UnboundedReceiver<WatchResponse>,
    orders: mpsc::WeakUnboundedSender<Order>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(orders) = self.orders.upgrade() {
            // The task may be over, and the stream with it.
            let _ = orders.send(Order::Cancel(self.id));
        }
    }
}

impl Watch {
    /// What happens next; `None` when the watch is over, for whatever reason.
    pub(crate) async fn message(&mut self) -> Option<WatchResponse> {
        let told = self.told.recv().await?;
        (!told.canceled()).then_some(told)
    }

    /// Waits for a change after that revision; false if the watch is over.
    pub(crate) async fn told(&mut self, after: i64) -> bool {
        while let Some(told) = self.message().await {
            let newest = newest(&told);
            self.last = self.last.max(newest);
            if newest > after {
                return true;
            }
        }
        false
    }

    /// The newest revision that it knows of.
    pub(crate) fn seen(&self) -> i64 {
        self.from.max(self.last)
    }
}

impl Watches {
    /// Those of a connection; its task ends when that is `broken`, and says that it is when the stream ends.
    pub(crate) fn new(client: WatchClient, broken: Arc<watch::Sender<bool>>) -> Self {
        let (orders, ordered) = mpsc::unbounded_channel();
        let stream = Stream {
            client,
            orders: orders.downgrade(),
            sender: None,
            proven: false,
            next: 1,
            opening: VecDeque::new(),
            open: HashMap::new(),
            kept: VecDeque::new(),
        };
        tokio::spawn(stream.run(ordered, broken));
        Self { orders }
    }

    /// A watch that sees everything from now on: it is in place when this returns.
    ///
    /// # Cancel safety
    /// May be dropped: then the watch is ended.
    pub(crate) async fn open(
        &self,
        key: &[u8],
        options: WatchOptions,
        keep: bool,
    ) -> Result<Watch, Driver> {
        let (opened, answer) = oneshot::channel();
        let key = key.to_vec();
        let order = Order::Open(Opening {
            key,
            options,
            keep,
            opened,
        });
        let over = || Driver::WatchError("the stream of watches ended".into());
        self.orders.send(order).map_err(|_| over())?;
        answer.await.map_err(|_| over())?
    }
}

/// The stream's task.
struct Stream {
    client: WatchClient,
    orders: mpsc::WeakUnboundedSender<Order>,
    /// Once there is a stream.
    sender: Option<WatchRequestSender>,
    /// Whether a watch was opened on it.
    proven: bool,
    next: i64,
    /// In the order in which they were asked for, which is that of the answers.
    opening: VecDeque<(Open, oneshot::Sender<Result<Watch, Driver>>)>,
    open: HashMap<i64, Open>,
    /// Those that nobody awaits just now, with their keys, and until when: the first to go are the first.
    kept: VecDeque<(Vec<u8>, i64, Instant)>,
}

/// A watch as the stream has it.
struct Open {
    id: i64,
    /// If it is to be kept.
    key: Option<Vec<u8>>,
    from: i64,
    last: i64,
    tell: Option<mpsc::UnboundedSender<WatchResponse>>,
}

impl Stream {
    async fn run(
        mut self,
        ordered: mpsc::UnboundedReceiver<Order>,
        broken: Arc<watch::Sender<bool>>,
    ) {
        let mut given_up = broken.subscribe();
        tokio::select! {
            _ = given_up.wait_for(|broken| *broken) => {}
            () = self.serve(ordered, &broken) => {}
        }
    }

    async fn serve(
        &mut self,
        mut ordered: mpsc::UnboundedReceiver<Order>,
        broken: &watch::Sender<bool>,
    ) {
        let mut responses = None;
        loop {
            let response = async {
                match &mut responses {
                    Some(responses) => next(responses).await,
                    None => std::future::pending().await,
                }
            };
            let end = self.kept.front().map(|(_, _, end)| *end);
            let end = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            let stays = tokio::select! {
                () = end => {
                    self.end_kept(Instant::now()).await;
                    true
                }
                order = ordered.recv() => match order {
                    Some(Order::Open(opening)) => {
                        if let Some(opened) = self.ask(opening).await {
                            responses = Some(opened);
                        }
                        true
                    }
                    Some(Order::Cancel(id)) => {
                        self.leave(id).await;
                        true
                    }
                    None => return,
                },
                told = response => match told {
                    Some(told) => self.pass_on(told),
                    None => {
                        if self.proven {
                            broken.send_replace(true);
                        }
                        false
                    }
                },
            };
            if !stays {
                // All watches are over; the next one opens another stream.
                responses = None;
                self.sender = None;
                self.opening.clear();
                self.open.clear();
                self.kept.clear();
            }
        }
    }

    /// Asks for a watch; returns the stream if it is a new one.
    async fn ask(&mut self, opening: Opening) -> Option<etcd_client::WatchResponseStream> {
        let Opening {
            key,
            options,
            keep,
            opened,
        } = opening;
        if keep && let Some(at) = self.kept.iter().position(|(kept, ..)| *kept == key) {
            let kept = self.kept.remove(at);
            if let Some(open) = kept.and_then(|(_, id, _)| self.open.get_mut(&id)) {
                // Dropped, it is kept again.
                drop(opened.send(Ok(open.watch(&self.orders))));
                return None;
            }
        }
        let id = self.next;
        self.next += 1;
        let options = Some(options.with_watch_id(id));
        let open = Open {
            id,
            key: keep.then(|| key.clone()),
            from: i64::MAX,
            last: 0,
            tell: None,
        };
        if let Some(sender) = &mut self.sender {
            // If it is over, its end is about to be read, and tells them all.
            if sender.watch(key, options).await.is_ok() {
                self.opening.push_back((open, opened));
            }
            return None;
        }
        match self
            .client
            .watch(key, options)
            .await
            .map(WatchStream::split)
        {
            Ok((sender, responses)) => {
                self.sender = Some(sender);
                self.proven = false;
                self.opening.push_back((open, opened));
                Some(responses)
            }
            Err(error) => {
                // Nobody waits any more.
                let _ = opened.send(Err(error));
                None
            }
        }
    }

    /// Nobody awaits a watch any more.
    async fn leave(&mut self, id: i64) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        open.tell = None;
        match open.key.clone() {
            Some(key) if !self.kept.iter().any(|(kept, ..)| *kept == key) => {
                self.kept.push_back((key, id, Instant::now() + KEPT));
                if self.kept.len() > MOST {
                    self.end_first().await;
                }
            }
            _ => self.cancel(id).await,
        }
    }

    async fn end_kept(&mut self, now: Instant) {
        while self.kept.front().is_some_and(|(_, _, end)| *end <= now) {
            self.end_first().await;
        }
    }

    async fn end_first(&mut self) {
        if let Some((_, id, _)) = self.kept.pop_front() {
            self.cancel(id).await;
        }
    }

    async fn cancel(&mut self, id: i64) {
        let was_open = self.open.remove(&id).is_some();
        if let Some(sender) = self.sender.as_mut().filter(|_| was_open) {
            // A stream that is over has no watches.
            let _ = sender.cancel(id).await;
        }
    }

    /// False if the stream is to be given up.
    fn pass_on(&mut self, told: WatchResponse) -> bool {
        if !told.created() {
            let id = told.watch_id();
            if told.canceled() {
                self.kept.retain(|(_, kept, _)| *kept != id);
                self.open.remove(&id);
            } else if let Some(open) = self.open.get_mut(&id) {
                open.last = open.last.max(newest(&told));
                if let Some(tell) = &open.tell {
                    // One that is not awaited any more is about to be left.
                    let _ = tell.send(told);
                }
            }
            return true;
        }
        let Some((mut open, opened)) = self.opening.pop_front() else {
            return true;
        };
        if told.canceled() {
            let why = format!("it was refused: {}", told.cancel_reason());
            // Whoever asked may have gone away, here and below.
            let _ = opened.send(Err(Driver::WatchError(why)));
            // The stream has the rights that it was opened with; those run out.
            return !self.proven;
        }
        self.proven = true;
        open.from = told.header().map_or(i64::MAX, |header| header.revision());
        let watch = open.watch(&self.orders);
        self.open.insert(open.id, open);
        // Dropped, it is left.
        drop(opened.send(Ok(watch)));
        true
    }
}

impl Open {
    fn watch(&mut self, orders: &mpsc::WeakUnboundedSender<Order>) -> Watch {
        let (tell, told) = mpsc::unbounded_channel();
        self.tell = Some(tell);
        Watch {
            id: self.id,
            from: self.from,
            last: self.last,
            told,
            orders: orders.clone(),
        }
    }
}

/// The revision of the newest event in this.
fn newest(told: &WatchResponse) -> i64 {
    let events = told.events().iter().filter_map(|event| event.kv());
    events.map(|kv| kv.mod_revision()).max().unwrap_or(0)
}

async fn next(responses: &mut etcd_client::WatchResponseStream) -> Option<WatchResponse> {
    responses.message().await.ok().flatten()
}
