//! A fence in this process, with or without a file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::{LockName, Mode, Sequencer};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::error::{FenceError, Result};
use crate::file::MarksFile;
use crate::gates::Gates;
use crate::marks::Marks;

/// Remembers the highest tokens of each lock, and lets a holder pass by the rule of [`Marks`]. Cheap to clone: all clones
/// are one fence.
///
/// In memory it protects a resource that ends with the process. With a file ([`Highest::open`]) it remembers over a restart:
/// a mark is on the disk (`fsync`) before its holder passes. It keeps a few dozen bytes for each lock that it has ever seen.
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
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    memory: Mutex<Memory>,
    /// Whether a thread may hold the mutex of `memory` while it waits for the disk.
    on_disk: bool,
    /// For each lock, the holders that have passed and still write.
    gates: Mutex<Gates<LockName, RwLock<()>>>,
}

#[derive(Debug, Default)]
struct Memory {
    marks: HashMap<LockName, Marks>,
    file: Option<MarksFile>,
}

/// A holder that has passed, and may write until this is dropped. No holder that excludes it passes meanwhile.
///
/// ```
/// # use fencelock_fence::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let fence = Highest::in_memory();
/// let pass = fence.enter(&holder).await?;
/// // … writes; a later holder waits …
/// drop(pass);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "write first, then drop it"]
pub struct Pass {
    _gate: Gate,
}

/// Keeps excluded holders out until it is dropped.
#[derive(Debug)]
pub(crate) enum Gate {
    Exclusive { _guard: OwnedRwLockWriteGuard<()> },
    Shared { _guard: OwnedRwLockReadGuard<()> },
}

impl Highest {
    /// A fence that ends with the process, for a resource that also ends with the process.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let fence = Highest::in_memory();
    /// fence.write(&holder, || println!("written"))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_memory() -> Self {
        Self::with(Memory::default())
    }

    fn with(memory: Memory) -> Self {
        let state = State {
            on_disk: memory.file.is_some(),
            memory: Mutex::new(memory),
            gates: Mutex::default(),
        };
        let state = Arc::new(state);
        Self { state }
    }

    /// A fence that remembers in a file. Creates the file if it does not exist. Waits while another process has it
    /// open: the file, and `PATH.lock` next to it, belong to one process at a time. If one of the two is deleted or
    /// replaced, no holder passes any more ([`FenceError::Damaged`]) until the file is opened again.
    ///
    /// # Errors
    /// - [`FenceError::Write`] if the file cannot be opened or written.
    /// - [`FenceError::Damaged`] if it is not a file of marks, or if a line that was synced is damaged.
    ///
    /// An incomplete last line, from a crash during a write, is cut off.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// # let path = std::env::temp_dir().join(format!("fencelock-example-{}", std::process::id()));
    /// let fence = Highest::open(&path)?;
    /// fence.mark(&holder)?;
    /// drop(fence);
    /// // After a restart:
    /// assert_eq!(Highest::open(&path)?.marks(&holder.name).top, 34);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        MarksFile::open(path.as_ref(), true).map(Self::opened)
    }

    /// As [`Highest::open`], without waiting.
    ///
    /// # Errors
    /// As [`Highest::open`], and [`FenceError::InUse`] if another process has the file open.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::temp_dir().join(format!("fencelock-example-try-{}", std::process::id()));
    /// let fence = Highest::open(&path)?;
    /// assert!(matches!(Highest::try_open(&path), Err(FenceError::InUse { .. })));
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_open(path: impl AsRef<Path>) -> Result<Self> {
        MarksFile::open(path.as_ref(), false).map(Self::opened)
    }

    fn opened((file, marks): (MarksFile, HashMap<LockName, Marks>)) -> Self {
        let file = Some(file);
        Self::with(Memory { marks, file })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // The marks in memory are raised last, after everything that can panic.
        let memory = self.state.memory.lock();
        memory.unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a holder and runs `write` in one step: no holder that excludes it passes before `write` has returned. The mark
    /// stays raised whatever `write` does.
    ///
    /// Blocks the thread while excluded holders write, and while the disk is busy. In async code use
    /// [`Highest::enter`].
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded, and errors of the file. Then `write` has not run.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let (fence, mut ledger) = (Highest::in_memory(), Vec::new());
    /// fence.write(&holder, || ledger.push("by 34"))?;
    /// let late = "fl1:x:33:ffeeddccbbaa99887766554433221100:ledger".parse()?;
    /// assert!(fence.write(&late, || ledger.push("by 33")).is_err());
    /// assert_eq!(ledger, ["by 34"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write<T>(&self, sequencer: &Sequencer, write: impl FnOnce() -> T) -> Result<T> {
        let _gate = block_on(self.gate(sequencer));
        self.mark(sequencer)?;
        Ok(write())
    }

    /// Checks a holder. It may write until the [`Pass`] is dropped.
    ///
    /// A file is written on a blocking thread of the tokio runtime, or on this thread if there is no runtime.
    ///
    /// # Errors
    /// As [`Highest::write`].
    ///
    /// # Cancel safety
    /// May be dropped. The mark may be raised by then.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let fence = Highest::in_memory();
    /// let pass = fence.enter(&holder).await?;
    /// tokio::task::yield_now().await; // … writes …
    /// drop(pass);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enter(&self, sequencer: &Sequencer) -> Result<Pass> {
        let gate = self.gate(sequencer).await;
        self.pass(gate, sequencer).await
    }

    /// Waits until no holder that excludes this one writes, and keeps such holders out from now on.
    pub(crate) async fn gate(&self, sequencer: &Sequencer) -> Gate {
        let gates = self.state.gates.lock();
        let gate = gates
            .unwrap_or_else(PoisonError::into_inner)
            .of(&sequencer.name);
        match sequencer.mode {
            Mode::Exclusive => Gate::Exclusive {
                _guard: gate.write_owned().await,
            },
            Mode::Shared | Mode::Permit { .. } => Gate::Shared {
                _guard: gate.read_owned().await,
            },
        }
    }

    /// Checks a holder that has its gate.
    pub(crate) async fn pass(&self, gate: Gate, sequencer: &Sequencer) -> Result<Pass> {
        self.without_blocking(sequencer, Self::mark).await?;
        Ok(Pass { _gate: gate })
    }

    /// Checks a holder without raising the marks.
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
        let runtime = match self.state.on_disk {
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

    /// Raises the marks: holders that this one supersedes are refused from now on. A write after this call is not one step
    /// with the check; use [`Highest::write`] for that.
    ///
    /// # Errors
    /// As [`Highest::write`].
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let fence = Highest::in_memory();
    /// fence.mark(&holder)?;
    /// let late = "fl1:x:33:ffeeddccbbaa99887766554433221100:ledger".parse()?;
    /// assert!(fence.mark(&late).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn mark(&self, sequencer: &Sequencer) -> Result<()> {
        let mut memory = self.memory();
        let Memory { marks, file } = &mut *memory;
        let before = marks.get(&sequencer.name).copied().unwrap_or_default();
        let after = before.judge(sequencer)?;
        if after == before {
            // Another process may use the file by now, and a later holder may have passed there.
            return file.as_ref().map_or(Ok(()), MarksFile::check_place);
        }
        if let Some(file) = file {
            file.append(&sequencer.name, after, marks)?;
        }
        marks.insert(sequencer.name.clone(), after);
        Ok(())
    }

    /// The marks of a lock. All are 0 if it was never seen.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let fence = Highest::in_memory();
    /// fence.mark(&holder)?;
    /// assert_eq!(fence.marks(&holder.name).exclusive, 34);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn marks(&self, name: &LockName) -> Marks {
        self.memory().marks.get(name).copied().unwrap_or_default()
    }
}

/// Runs a future on this thread, without a runtime.
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
