//! A fence in this process, with or without a file.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fencelock_core::{LockName, Mode, Sequencer};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::error::{FenceError, Result};
use crate::file::MarksFile;
use crate::marks::Marks;

/// Remembers the highest tokens of each lock, and lets a holder pass by the rule of [`Marks`]. Cheap to clone; all clones
/// are one fence.
///
/// In memory it protects what dies with the process. With a file ([`Highest::open`]) it remembers over a restart: a mark is
/// on the disk (`fsync`) before its holder passes. A few dozen bytes are kept for each lock that was ever seen.
///
/// ```
/// # use fencelock_fence::Highest;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let claim = "00112233445566778899aabbccddeeff";
/// let early = format!("fl1:x:33:{claim}:ledger").parse()?;
/// let late = "fl1:x:34:ffeeddccbbaa99887766554433221100:ledger".parse()?;
/// let (fence, mut ledger) = (Highest::in_memory(), Vec::new());
/// fence.write(&early, || ledger.push("by 33"))?;
/// fence.write(&late, || ledger.push("by 34"))?;
/// let refusal = fence.write(&early, || ledger.push("by 33, too late")).unwrap_err();
/// assert_eq!(refusal.stale().unwrap().won.get(), 34);
/// assert_eq!(ledger, ["by 33", "by 34"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Highest {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: Mutex<Memory>,
    /// Whether `memory` may be locked for as long as a disk takes.
    on_disk: bool,
    gates: Mutex<Gates<LockName, RwLock<()>>>,
}

#[derive(Debug, Default)]
struct Memory {
    marks: HashMap<LockName, Marks>,
    file: Option<MarksFile>,
}

/// A gate for each key (here a lock: who has passed and is still writing), which lives for as long as somebody has it.
#[derive(Debug)]
pub(crate) struct Gates<K, G> {
    gates: HashMap<K, Weak<G>>,
    /// How many gates there may be before the next sweep.
    sweep_at: usize,
}

impl<K, G> Default for Gates<K, G> {
    fn default() -> Self {
        let (gates, sweep_at) = (HashMap::new(), 0);
        Self { gates, sweep_at }
    }
}

/// A holder that has passed and may write until this is dropped: no holder that excludes it passes meanwhile.
#[derive(Debug)]
#[must_use = "write first, then drop it"]
pub struct Pass {
    _gate: Gate,
}

/// What keeps those out who are excluded, until it is dropped.
#[derive(Debug)]
pub(crate) enum Gate {
    Alone { _guard: OwnedRwLockWriteGuard<()> },
    Beside { _guard: OwnedRwLockReadGuard<()> },
}

impl Highest {
    /// A fence that forgets everything with the process, for a resource that does so, too.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::with(Memory::default())
    }

    fn with(memory: Memory) -> Self {
        let shared = Shared {
            on_disk: memory.file.is_some(),
            memory: Mutex::new(memory),
            gates: Mutex::default(),
        };
        let shared = Arc::new(shared);
        Self { shared }
    }

    /// A fence that remembers in a file, which is made if there is none. Waits while another process has it open: the
    /// file, and `PATH.lock` beside it, belong to one process at a time. If one of the two is deleted or replaced meanwhile,
    /// nobody passes any more ([`FenceError::Damaged`]) until it is opened again.
    ///
    /// # Errors
    /// [`FenceError::Write`] if the file cannot be opened or written,
    /// [`FenceError::Damaged`] if it is no file of marks, or a line that was once synced is
    /// damaged. A last line that was being written in a crash is none, and is cut off.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        MarksFile::open(path.as_ref(), true).map(Self::opened)
    }

    /// As [`Highest::open`], but does not wait.
    ///
    /// # Errors
    /// As there, and [`FenceError::InUse`] if another process has it open.
    pub fn try_open(path: impl AsRef<Path>) -> Result<Self> {
        MarksFile::open(path.as_ref(), false).map(Self::opened)
    }

    fn opened((file, marks): (MarksFile, HashMap<LockName, Marks>)) -> Self {
        let file = Some(file);
        Self::with(Memory { marks, file })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // The marks in memory are raised last, after whatever can panic.
        let memory = self.shared.memory.lock();
        memory.unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a holder and runs `write` in one step: nobody who excludes it passes before `write` has returned. The mark
    /// stays raised whatever `write` does.
    ///
    /// Blocks the thread while others write, and for the disk. In async code use [`Highest::enter`].
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded, and the file's errors. `write` has not
    /// run then.
    pub fn write<T>(&self, sequencer: &Sequencer, write: impl FnOnce() -> T) -> Result<T> {
        let _gate = block_on(self.gate(sequencer));
        self.mark(sequencer)?;
        Ok(write())
    }

    /// Checks a holder, which may write until the [`Pass`] is dropped.
    ///
    /// A file is written on one of the runtime's threads for what blocks; outside a tokio runtime, on this one.
    ///
    /// # Errors
    /// As [`Highest::write`].
    ///
    /// # Cancel safety
    /// May be dropped; the mark may be raised by then.
    pub async fn enter(&self, sequencer: &Sequencer) -> Result<Pass> {
        let gate = self.gate(sequencer).await;
        self.pass(gate, sequencer).await
    }

    /// Waits until nobody writes who excludes this holder, and keeps those out from now on.
    pub(crate) async fn gate(&self, sequencer: &Sequencer) -> Gate {
        let gates = self.shared.gates.lock();
        let gate = gates
            .unwrap_or_else(PoisonError::into_inner)
            .of(&sequencer.name);
        match sequencer.mode {
            Mode::Exclusive => Gate::Alone {
                _guard: gate.write_owned().await,
            },
            Mode::Shared | Mode::Permit { .. } => Gate::Beside {
                _guard: gate.read_owned().await,
            },
        }
    }

    /// Checks a holder that is at its gate.
    pub(crate) async fn pass(&self, gate: Gate, sequencer: &Sequencer) -> Result<Pass> {
        self.without_blocking(sequencer, Self::mark).await?;
        Ok(Pass { _gate: gate })
    }

    /// Checks a holder and remembers nothing of it.
    #[cfg(feature = "http")]
    pub(crate) async fn judge(&self, sequencer: &Sequencer) -> Result<()> {
        let judge = |this: &Self, sequencer: &Sequencer| {
            this.marks(&sequencer.name).judge(sequencer)?;
            Ok(())
        };
        self.without_blocking(sequencer, judge).await
    }

    async fn without_blocking(
        &self,
        sequencer: &Sequencer,
        work: impl FnOnce(&Self, &Sequencer) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let runtime = match self.shared.on_disk {
            true => tokio::runtime::Handle::try_current().ok(),
            false => None,
        };
        let Some(runtime) = runtime else {
            return work(self, sequencer);
        };
        let (this, sequencer) = (self.clone(), sequencer.clone());
        let done = runtime.spawn_blocking(move || work(&this, &sequencer));
        done.await
            .unwrap_or_else(|gone| match gone.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(gone) => Err(FenceError::Write {
                    resource: "its file".into(),
                    action: "check a holder",
                    cause: gone.into(),
                }),
            })
    }

    /// Raises the marks and lets nothing be written: whoever is superseded by this holder is refused from now on. What is
    /// written after this call, and not by [`Highest::write`], is not one step with it.
    ///
    /// # Errors
    /// As [`Highest::write`].
    pub fn mark(&self, sequencer: &Sequencer) -> Result<()> {
        let mut memory = self.memory();
        let Memory { marks, file } = &mut *memory;
        let before = marks.get(&sequencer.name).copied().unwrap_or_default();
        let after = before.judge(sequencer)?;
        if after == before {
            // Another process may have let a later holder pass.
            return file.as_ref().map_or(Ok(()), MarksFile::check_place);
        }
        if let Some(file) = file {
            file.append(&sequencer.name, after, marks)?;
        }
        marks.insert(sequencer.name.clone(), after);
        Ok(())
    }

    /// The marks of a lock; the lowest if it was never seen.
    #[must_use]
    pub fn marks(&self, name: &LockName) -> Marks {
        self.memory().marks.get(name).copied().unwrap_or_default()
    }
}

impl<K: Clone + Eq + Hash, G: Default> Gates<K, G> {
    pub(crate) fn of(&mut self, key: &K) -> Arc<G> {
        if let Some(gate) = self.gates.get(key).and_then(Weak::upgrade) {
            return gate;
        }
        if self.gates.len() >= self.sweep_at {
            self.gates.retain(|_, gate| gate.strong_count() > 0);
            self.sweep_at = 2 * self.gates.len() + 64;
        }
        let gate = Arc::default();
        self.gates.insert(key.clone(), Arc::downgrade(&gate));
        gate
    }
}

/// Runs a future to its end on this thread, without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::park();
    }
}
