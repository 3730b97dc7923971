//! A worker process: it reads commands as lines from its standard input, and answers with lines on its standard output.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;

use tokio::sync::mpsc;

use crate::failure::{Failure, Result};
use crate::process::{Process, Streams};

/// A worker; killed when dropped. It shares the standard error of this process.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    stdin: Mutex<Option<ChildStdin>>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Worker {
    /// Starts `command`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &Command) -> Result<Self> {
        let mut process = Process::spawn(
            command,
            Streams {
                stdin: Stdio::piped(),
                stdout: Stdio::piped(),
                stderr: Stdio::inherit(),
            },
        )?;
        let (stdin, stdout) = process.take_pipes();
        let stdout = stdout.ok_or_else(|| Failure::new("the worker has no standard output"))?;
        let (tell, lines) = mpsc::unbounded_channel();
        let read = move || {
            // Ends when the worker's output ends, or when the receiver is dropped.
            for line in BufReader::new(stdout)
                .lines()
                .map_while(std::io::Result::ok)
            {
                if tell.send(line).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("a worker's output".into());
        thread.spawn(read).map_err(Failure::to("start a thread"))?;
        Ok(Self {
            process,
            stdin: Mutex::new(stdin),
            lines,
        })
    }

    /// The process, to pause, resume and kill it.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Sends a line.
    ///
    /// # Errors
    /// If the worker has ended or closed its input.
    pub fn send(&self, line: &str) -> Result<()> {
        let mut stdin = self
            .stdin
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(stdin) = stdin.as_mut() else {
            return Err(Failure::new("the worker's input is closed"));
        };
        let sent = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        sent.map_err(Failure::to(format!(
            "send {line:?} to worker {}",
            self.process.pid()
        )))
    }

    /// Ends the worker's input.
    pub fn end_input(&self) {
        let mut stdin = self
            .stdin
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *stdin = None;
    }

    /// The next line; `None` once the worker has closed its output.
    ///
    /// # Cancel safety
    /// May be dropped; no line is lost.
    pub async fn line(&mut self) -> Option<String> {
        self.lines.recv().await
    }

    /// Takes the receiver of lines, so that another task can read them while this handle pauses and kills the process.
    /// Afterwards this handle receives no lines.
    pub fn take_lines(&mut self) -> mpsc::UnboundedReceiver<String> {
        std::mem::replace(&mut self.lines, mpsc::unbounded_channel().1)
    }

    /// As [`Worker::line`], but blocking. Do not call it in an async context.
    pub fn line_blocking(&mut self) -> Option<String> {
        self.lines.blocking_recv()
    }
}
