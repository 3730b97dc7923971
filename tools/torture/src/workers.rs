//! The worker processes: started, stopped, killed and replaced.

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fencelock::Clock;
use fencelock_testbed::{Failure, Result, Worker};

use crate::Relaunch;
use crate::record::Record;
use crate::worker::{Event, Job};

/// All workers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Workers {
    slots: Arc<Vec<Mutex<Slot>>>,
    /// The programs of the workers, in turns.
    programs: Vec<Relaunch>,
    record: Record,
}

struct Slot {
    job: Job,
    running: Option<Running>,
}

struct Running {
    worker: Worker,
    reader: JoinHandle<()>,
    ready: std::sync::mpsc::Receiver<()>,
    /// When it was killed, for the reader.
    killed: Arc<Mutex<Option<u64>>>,
}

impl Workers {
    pub(crate) fn new(jobs: Vec<Job>, programs: Vec<Relaunch>, record: Record) -> Self {
        let slot = |job| Mutex::new(Slot { job, running: None });
        let slots = Arc::new(jobs.into_iter().map(slot).collect());
        Self {
            slots,
            programs,
            record,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, index: usize) -> MutexGuard<'_, Slot> {
        self.slots[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker in a slot that has none.
    pub(crate) fn start(&self, index: usize) -> Result<()> {
        let mut slot = self.slot(index);
        let program = &self.programs[index % self.programs.len()];
        let mut command = Command::new(&program.program);
        command.args(&program.args);
        let mut worker = Worker::spawn(&command)?;
        let job = serde_json::to_string(&slot.job).map_err(Failure::to("write a worker's job"))?;
        worker.send(&job)?;
        let (tell, ready) = std::sync::mpsc::channel();
        let killed: Arc<Mutex<Option<u64>>> = Arc::default();
        let mut lines = worker.take_lines();
        let (record, killed_at) = (self.record.clone(), Arc::clone(&killed));
        let (number, life) = (slot.job.worker, slot.job.life);
        let read = move || {
            while let Some(line) = lines.blocking_recv() {
                match serde_json::from_str(&line) {
                    // Fails only if `await_ready` has already given up.
                    Ok(Event::Ready) => drop(tell.send(())),
                    Ok(said) => record.parts().note(number, life, said),
                    // The last line of a killed process may be incomplete.
                    Err(_) => {}
                }
            }
            let killed = *killed_at.lock().unwrap_or_else(PoisonError::into_inner);
            record.parts().gone(number, life, killed);
        };
        let thread = std::thread::Builder::new().name(format!("reader of worker {number}"));
        let reader = thread.spawn(read).map_err(Failure::to("start a thread"))?;
        slot.running = Some(Running {
            worker,
            reader,
            ready,
            killed,
        });
        Ok(())
    }

    /// Waits until a worker is ready.
    pub(crate) fn await_ready(&self, index: usize, limit: Duration) -> Result<()> {
        let slot = self.slot(index);
        let running = slot
            .running
            .as_ref()
            .ok_or_else(|| Failure::new("no worker"))?;
        let what = format!("start worker {index} (its error is above)");
        running.ready.recv_timeout(limit).map_err(Failure::to(what))
    }

    pub(crate) fn pause(&self, index: usize) -> Result<()> {
        self.with(index, |running| running.worker.process().pause())
    }

    pub(crate) fn resume(&self, index: usize) -> Result<()> {
        self.with(index, |running| running.worker.process().resume())
    }

    pub(crate) fn tell(&self, index: usize, line: &str) -> Result<()> {
        self.with(index, |running| running.worker.send(line))
    }

    fn with(&self, index: usize, act: impl FnOnce(&Running) -> Result<()>) -> Result<()> {
        match &self.slot(index).running {
            Some(running) => act(running),
            None => Err(Failure::new(format!("worker {index} is not running"))),
        }
    }

    /// Kills a worker, and reads the rest of its output.
    pub(crate) fn kill(&self, index: usize) {
        let running = {
            let mut slot = self.slot(index);
            slot.job.life += 1;
            slot.running.take()
        };
        let Some(running) = running else { return };
        // The time is taken before the signal is sent: from this instant on the worker does not count as a holder.
        let now = Clock::Boot.now().as_nanos();
        *running
            .killed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(now);
        running.worker.process().kill9();
        // The reader ends when the output ends.
        drop(running.reader.join());
    }

    /// Lets every worker finish, and waits for the ends of all.
    pub(crate) fn finish(&self, limit: Duration) {
        for index in 0..self.len() {
            if let Err(error) = self.tell(index, "stop") {
                self.record.trouble(error.to_string());
            }
        }
        let begin = std::time::Instant::now();
        for index in 0..self.len() {
            let running = self.slot(index).running.take();
            let Some(running) = running else { continue };
            let left = limit.saturating_sub(begin.elapsed());
            match running.worker.process().wait_for(left) {
                Some(ended) if ended.0.success() => {}
                Some(ended) => self
                    .record
                    .trouble(format!("worker {index} ended with {}", ended.0)),
                None => {
                    self.record
                        .trouble(format!("worker {index} did not end within {limit:?}"));
                    running.worker.process().kill9();
                }
            }
            drop(running.reader.join());
        }
    }
}
