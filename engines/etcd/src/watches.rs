//! All watches of a connection, on one stream. A stream for each waiter would cost more than the waiting itself.
//!
//! A watch on one key is kept for a while after its last use. A client that takes a contended lock again and again mostly waits
//! behind the same client, whose keys have the same names each time. Then no request to the server is needed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error as Driver, WatchClient, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream, WatchStream,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How long an unused watch is kept.
const KEPT: Duration = Duration::from_secs(1);

const MAX_KEPT: usize = 64;

#[derive(Debug)]
enum Command {
    Open(OpenRequest),
    Release(i64),
}

#[derive(Debug)]
struct OpenRequest {
    key: Vec<u8>,
    options: WatchOptions,
    keep: bool,
    reply: oneshot::Sender<Result<Watch, Driver>>,
}

/// Opens watches on the stream. The stream's task runs as long as this exists.
#[derive(Debug)]
pub(crate) struct Watches {
    commands: mpsc::UnboundedSender<Command>,
}

/// One watch. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    /// The watch sees every change after this revision.
    pub(crate) from: i64,
    /// The revision of the last change that it saw, perhaps before this use of the watch. 0 if there was none.
    pub(crate) last: i64,
    responses: mpsc::UnboundedReceiver<WatchResponse>,
    commands: mpsc::WeakUnboundedSender<Command>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.upgrade() {
            // The task may have ended, and the stream with it.
            let _ = commands.send(Command::Release(self.id));
        }
    }
}

impl Watch {
    /// The next response. `None` when the watch has ended for any reason.
    pub(crate) async fn next(&mut self) -> Option<WatchResponse> {
        let response = self.responses.recv().await?;
        (!response.canceled()).then_some(response)
    }

    /// Waits for a change after this revision. `false` if the watch has ended.
    pub(crate) async fn changed_after(&mut self, revision: i64) -> bool {
        while let Some(response) = self.next().await {
            let newest = newest_revision(&response);
            self.last = self.last.max(newest);
            if newest > revision {
                return true;
            }
        }
        false
    }

    /// The newest revision that the watch knows of.
    pub(crate) fn seen(&self) -> i64 {
        self.from.max(self.last)
    }
}

impl Watches {
    /// The watches of a connection. The stream's task ends when the connection is `broken`, and sets that when the stream
    /// ends.
    pub(crate) fn new(client: WatchClient, broken: Arc<watch::Sender<bool>>) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let stream = Stream {
            client,
            commands: commands.downgrade(),
            sender: None,
            proven: false,
            next_id: 1,
            opening: VecDeque::new(),
            open: HashMap::new(),
            kept: VecDeque::new(),
        };
        tokio::spawn(stream.run(received, broken));
        Self { commands }
    }

    /// Opens a watch that sees every change from now on: it is in place when this returns.
    ///
    /// # Cancel safety
    /// If the future is dropped, the watch ends.
    pub(crate) async fn open(
        &self,
        key: &[u8],
        options: WatchOptions,
        keep: bool,
    ) -> Result<Watch, Driver> {
        let (reply, opened) = oneshot::channel();
        let command = Command::Open(OpenRequest {
            key: key.to_vec(),
            options,
            keep,
            reply,
        });
        let ended = || Driver::WatchError("the stream of watches ended".into());
        self.commands.send(command).map_err(|_| ended())?;
        opened.await.map_err(|_| ended())?
    }
}

struct Stream {
    client: WatchClient,
    commands: mpsc::WeakUnboundedSender<Command>,
    /// `None` while there is no stream.
    sender: Option<WatchRequestSender>,
    /// Whether the server has opened at least one watch on this stream.
    proven: bool,
    next_id: i64,
    /// The watches without a reply, in the order of their requests, which is that of the replies.
    opening: VecDeque<(OpenWatch, oneshot::Sender<Result<Watch, Driver>>)>,
    open: HashMap<i64, OpenWatch>,
    /// The unused watches that are kept. The first one ends first.
    kept: VecDeque<Kept>,
}

/// A watch as the stream's task has it.
struct OpenWatch {
    id: i64,
    /// The key, if the watch is to be kept.
    key: Option<Vec<u8>>,
    from: i64,
    last: i64,
    /// To the [`Watch`]. `None` while nobody uses it.
    responses: Option<mpsc::UnboundedSender<WatchResponse>>,
}

struct Kept {
    key: Vec<u8>,
    id: i64,
    until: Instant,
}

impl Stream {
    async fn run(
        mut self,
        commands: mpsc::UnboundedReceiver<Command>,
        broken: Arc<watch::Sender<bool>>,
    ) {
        let mut given_up = broken.subscribe();
        tokio::select! {
            _ = given_up.wait_for(|broken| *broken) => {}
            () = self.serve(commands, &broken) => {}
        }
    }

    async fn serve(
        &mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        broken: &watch::Sender<bool>,
    ) {
        let mut responses = None;
        loop {
            let lives = tokio::select! {
                () = sleep_until(self.kept.front().map(|kept| kept.until)) => {
                    self.end_kept(Instant::now()).await;
                    true
                }
                command = commands.recv() => match command {
                    Some(Command::Open(request)) => {
                        if let Some(opened) = self.open(request).await {
                            responses = Some(opened);
                        }
                        true
                    }
                    Some(Command::Release(id)) => {
                        self.release(id).await;
                        true
                    }
                    None => return,
                },
                response = next(&mut responses) => match response {
                    Some(response) => self.dispatch(response),
                    None => {
                        if self.proven {
                            broken.send_replace(true);
                        }
                        false
                    }
                },
            };
            if !lives {
                // All watches have ended. The next request opens another stream.
                responses = None;
                self.sender = None;
                self.opening.clear();
                self.open.clear();
                self.kept.clear();
            }
        }
    }

    /// Opens a watch. Returns the responses of the stream if it is a new one.
    async fn open(&mut self, request: OpenRequest) -> Option<WatchResponseStream> {
        let OpenRequest {
            key,
            options,
            keep,
            reply,
        } = request;
        if keep && let Some(at) = self.kept.iter().position(|kept| kept.key == key) {
            let kept = self.kept.remove(at);
            if let Some(open) = kept.and_then(|kept| self.open.get_mut(&kept.id)) {
                // If nobody receives it, the watch is dropped and kept again.
                drop(reply.send(Ok(open.watch(&self.commands))));
                return None;
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        let options = Some(options.with_watch_id(id));
        let open = OpenWatch {
            id,
            key: keep.then(|| key.clone()),
            from: i64::MAX,
            last: 0,
            responses: None,
        };
        if let Some(sender) = &mut self.sender {
            // If the stream has ended, its end is read next, and all requests fail.
            if sender.watch(key, options).await.is_ok() {
                self.opening.push_back((open, reply));
            }
            return None;
        }
        let opened = self.client.watch(key, options).await;
        match opened.map(WatchStream::split) {
            Ok((sender, responses)) => {
                self.sender = Some(sender);
                self.proven = false;
                self.opening.push_back((open, reply));
                Some(responses)
            }
            Err(error) => {
                // Sending fails if the caller has given up.
                let _ = reply.send(Err(error));
                None
            }
        }
    }

    async fn release(&mut self, id: i64) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        open.responses = None;
        match open.key.clone() {
            Some(key) if !self.kept.iter().any(|kept| kept.key == key) => {
                let until = Instant::now() + KEPT;
                self.kept.push_back(Kept { key, id, until });
                if self.kept.len() > MAX_KEPT {
                    self.end_first().await;
                }
            }
            _ => self.cancel(id).await,
        }
    }

    async fn end_kept(&mut self, now: Instant) {
        while self.kept.front().is_some_and(|kept| kept.until <= now) {
            self.end_first().await;
        }
    }

    async fn end_first(&mut self) {
        if let Some(kept) = self.kept.pop_front() {
            self.cancel(kept.id).await;
        }
    }

    async fn cancel(&mut self, id: i64) {
        let was_open = self.open.remove(&id).is_some();
        if let Some(sender) = self.sender.as_mut().filter(|_| was_open) {
            // An error means that the stream has ended, and all watches with it.
            let _ = sender.cancel(id).await;
        }
    }

    /// Passes a response on to its watch. `false` if the stream is to be given up.
    fn dispatch(&mut self, response: WatchResponse) -> bool {
        if response.created() {
            return self.opened(&response);
        }
        let id = response.watch_id();
        if response.canceled() {
            self.kept.retain(|kept| kept.id != id);
            self.open.remove(&id);
        } else if let Some(open) = self.open.get_mut(&id) {
            open.last = open.last.max(newest_revision(&response));
            if let Some(responses) = &open.responses {
                // A watch that was dropped is about to be released.
                let _ = responses.send(response);
            }
        }
        true
    }

    /// The server replied to the oldest request. `false` if the stream is to be given up.
    fn opened(&mut self, response: &WatchResponse) -> bool {
        let Some((mut open, reply)) = self.opening.pop_front() else {
            return true;
        };
        if response.canceled() {
            let why = format!("it was refused: {}", response.cancel_reason());
            // Sending fails if the caller has given up.
            let _ = reply.send(Err(Driver::WatchError(why)));
            // The rights of a stream are those of the time when it was opened, and they expire.
            return !self.proven;
        }
        self.proven = true;
        let header = response.header();
        open.from = header.map_or(i64::MAX, |header| header.revision());
        let watch = open.watch(&self.commands);
        self.open.insert(open.id, open);
        // If nobody receives it, the watch is dropped and released.
        drop(reply.send(Ok(watch)));
        true
    }
}

impl OpenWatch {
    fn watch(&mut self, commands: &mpsc::WeakUnboundedSender<Command>) -> Watch {
        let (sender, responses) = mpsc::unbounded_channel();
        self.responses = Some(sender);
        Watch {
            id: self.id,
            from: self.from,
            last: self.last,
            responses,
            commands: commands.clone(),
        }
    }
}

fn newest_revision(response: &WatchResponse) -> i64 {
    let events = response.events().iter().filter_map(|event| event.kv());
    events.map(|kv| kv.mod_revision()).max().unwrap_or(0)
}

/// The next response of the stream. Waits forever if there is no stream.
async fn next(responses: &mut Option<WatchResponseStream>) -> Option<WatchResponse> {
    match responses {
        Some(responses) => responses.message().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

/// Waits forever if there is no deadline.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
