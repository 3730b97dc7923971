//! `run` in an interactive shell on a real terminal: Ctrl-C, Ctrl-Z, fg, bg, and the line that is shown while it waits.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::fixture::{Fixture, TIMEOUT, group, processes, until};

// A command that gets signals from the terminal starts no other commands. A shell that has just called vfork cannot be
// stopped while its child is stopped, and dash loses a Ctrl-C at that moment.

/// A shell with job control on a terminal of its own; killed when dropped.
struct Shell {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What the screen has shown since the last [`Shell::see`].
    seen: String,
}

impl Shell {
    fn on(fixture: &Fixture) -> Self {
        let keyboard =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = File::from(open(name, flags, Mode::empty()).unwrap());
        let mut command = Command::new("env");
        command
            .args([
                "--default-signal",
                "setsid",
                "--ctty",
                "bash",
                "--norc",
                "--noprofile",
                "-i",
            ])
            .current_dir(fixture.path("."))
            .env_remove("FENCELOCK_OWNER")
            .env("FENCELOCK_STORE", fixture.store())
            .env("FL", env!("CARGO_BIN_EXE_fencelock"))
            .env("PS1", "ready> ")
            .env("PS2", "")
            .env("TERM", "dumb")
            .stdin(Stdio::from(tty.try_clone().unwrap()))
            .stdout(Stdio::from(tty.try_clone().unwrap()))
            .stderr(Stdio::from(tty));
        let child = command.spawn().unwrap();
        drop(command);
        let keyboard = File::from(keyboard);
        let mut master = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = master.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut shell = Self {
            child,
            keyboard,
            screen,
            seen: String::new(),
        };
        shell.see("ready> ");
        // Without echo, typed text does not look like output.
        shell.type_in("stty -echo cols 120\n");
        shell.see("ready> ");
        shell
    }

    fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this, and returns what it showed up to there.
    fn see(&mut self, wanted: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.seen.find(wanted) {
                let rest = self.seen.split_off(at + wanted.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = TIMEOUT.saturating_sub(begun.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!(
                    "{wanted:?} does not appear; the screen shows {:?}; processes:\n{}",
                    self.seen,
                    self.session()
                ),
            }
        }
    }

    /// Its processes, for the message of a failed test.
    fn session(&self) -> String {
        let mut ps = Command::new("ps");
        ps.args(["-o", "pid,ppid,pgid,tpgid,stat,wchan:20,args", "--sid"]);
        ps.arg(self.child.id().to_string()).stdout(Stdio::piped());
        crate::fixture::finish(ps).out
    }

    /// The number after `what` on the screen.
    fn number(&mut self, what: &str) -> i32 {
        self.see(what);
        self.see("\n").trim().parse().unwrap()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints its process id and repeats what is typed.
const ECHO: &str = "$FL run --ttl 10s a -- sh -c 'echo pid=$$; while read word; do echo heard-$word; done'; echo code=$?\n";

fn state(pid: i32) -> char {
    let all = processes();
    all.iter().find(|process| process.pid == pid).unwrap().state
}

#[test]
fn ctrl_c_ends_the_command_and_gives_the_terminal_back() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    shell.type_in("$FL run a -- sh -c 'echo pid=$$; exec sleep 60'; echo code=$?\n");
    let command = shell.number("pid=");
    shell.type_in("\x03");
    assert_eq!(shell.number("code="), 130);
    assert!(group(command).is_empty());
    // The shell has its terminal back.
    shell.type_in("echo back\n");
    shell.see("back");
    assert!(fixture.show("a")["token"].is_null());
}

#[test]
fn ctrl_c_while_waiting_leaves_the_queue() {
    let fixture = Fixture::new();
    let mut hold = fixture.start(&["hold", "--label", "nightly", "a"]);
    let owner = hold.json()["owner"].as_str().unwrap().to_owned();
    let mut shell = Shell::on(&fixture);
    shell.type_in("$FL run a -- echo ran; echo code=$?\n");
    // The line shows the holder, the time since it holds, and the place in the queue.
    let line = shell.see("(nightly)");
    let who = owner.split('#').next().unwrap();
    assert!(
        line.contains("waiting for a (place 1 of 1), held for "),
        "{line:?}"
    );
    assert!(line.contains(&format!(" by {who} ")), "{line:?}");
    shell.type_in("\x03");
    let rest = shell.see("code=");
    assert!(rest.contains("\r\x1b[K"), "{rest:?}");
    assert_eq!(shell.see("\n").trim(), "130");
    fixture.await_waiters("a", 0);
    shell.type_in("$FL run -q -w 1 a -- echo ran; echo code=$?\n");
    assert!(!shell.see("code=").contains("waiting"));
}

#[test]
fn the_command_has_the_terminal() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    shell.type_in(ECHO);
    shell.number("pid=");
    shell.type_in("one\n");
    shell.see("heard-one");
    shell.type_in("\x04");
    assert_eq!(shell.number("code="), 0);
    shell.type_in("echo back\n");
    shell.see("back");
}

#[test]
fn it_reads_the_terminal_from_its_first_moment() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    for i in 0..30 {
        shell.type_in(&format!("$FL run a -- head -n 1; echo code=$?\nword{i}\n"));
        shell.see(&format!("word{i}"));
        assert_eq!(shell.number("code="), 0);
    }
}

#[test]
fn ctrl_z_stops_both_and_fg_resumes_both() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    shell.type_in(ECHO);
    let command = shell.number("pid=");
    for _ in 0..3 {
        shell.type_in("\x1a");
        shell.see("Stopped");
        assert_eq!(state(command), 'T');
        // Meanwhile the shell has the terminal.
        shell.type_in("echo back\n");
        shell.see("back");
        shell.type_in("fg\n");
        shell.type_in("one\n");
        shell.see("heard-one");
    }
    shell.type_in("\x03");
    // After a stop, bash has already continued with the rest of the list, so the exit code is not printed.
    until("the command is gone", || group(command).is_empty());
    shell.type_in("echo back\n");
    shell.see("back");
}

#[test]
fn fg_after_the_lease_finds_that_the_command_was_killed() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    shell.type_in("$FL run --ttl 500ms a -- sh -c 'trap \"\" TERM; echo pid=$$; exec sleep 60'\n");
    let command = shell.number("pid=");
    shell.type_in("\x1a");
    shell.see("Stopped");
    until("the command is gone", || group(command).is_empty());
    // Now another client can acquire the lock.
    assert_eq!(fixture.run(&["run", "a", "true"]).code, 0);
    shell.type_in("fg; echo code=$?\n");
    let said = shell.see("code=");
    assert!(said.contains("lock a was lost"), "{said:?}");
    assert_eq!(shell.see("\n").trim(), "75");
}

#[test]
fn bg_resumes_it_without_the_terminal() {
    let fixture = Fixture::new();
    let made = Command::new("mkfifo")
        .arg(fixture.path("go"))
        .status()
        .unwrap();
    assert!(made.success());
    let mut shell = Shell::on(&fixture);
    shell.type_in("$FL run a -- sh -c 'echo pid=$$; read word < go; echo went'\n");
    let command = shell.number("pid=");
    shell.type_in("\x1a");
    shell.see("Stopped");
    shell.type_in("bg\n");
    until("it runs again", || state(command) != 'T');
    shell.type_in("echo back\n");
    shell.see("back");
    shell.type_in("echo > go; wait; echo done\n");
    let said = shell.see("done");
    assert!(said.contains("went"), "{said:?}");
}

#[test]
fn a_job_in_the_background_that_reads_is_stopped_until_fg() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    shell.type_in("$FL run a -- sh -c 'echo pid=$$; read word; echo heard-$word' & echo started\n");
    let command = shell.number("pid=");
    until("the shell knows that its job is stopped", || {
        shell.type_in("jobs\n");
        shell.see("ready> ").contains("Stopped")
    });
    assert_eq!(state(command), 'T');
    shell.type_in("fg\n");
    until("it runs again", || state(command) != 'T');
    shell.type_in("one\n");
    shell.see("heard-one");
    shell.type_in("echo code=$?\n");
    assert_eq!(shell.number("code="), 0);
}

#[test]
fn a_stop_that_no_process_could_end_is_ignored() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    // The job is orphaned: the shell that could continue it is in another session.
    shell.type_in(
        "script -qec \"$FL run a -- sh -c 'echo pid=\\$\\$; read word; echo heard-\\$word'\" /dev/null; echo code=$?\n",
    );
    shell.number("pid=");
    shell.type_in("\x1a");
    shell.type_in("one\n");
    shell.see("heard-one");
    assert_eq!(shell.number("code="), 0);
}

#[test]
fn ls_on_a_terminal_says_that_nothing_is_held() {
    let fixture = Fixture::new();
    let mut shell = Shell::on(&fixture);
    shell.type_in("$FL ls\n");
    shell.see("no lock is held");
    shell.type_in("$FL ls job/\n");
    shell.see("begins with \"job/\"");
    shell.type_in("$FL ls | wc -c | sed s/^/bytes:/\n");
    assert_eq!(shell.number("bytes:"), 0);
}
