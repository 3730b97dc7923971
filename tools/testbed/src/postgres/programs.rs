//! PostgreSQL's programs, where Debian puts them. PostgreSQL refuses to run as root: if root starts it, it runs as the user
//! `postgres`.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::clock_shim::ClockShim;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::process::{Process, Streams};

/// The directory of PostgreSQL's programs, and the user that they run as.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub(super) bin: PathBuf,
    /// The user and group to run as, if this process runs as root.
    user: Option<(u32, u32)>,
}

impl Programs {
    pub(super) fn find() -> Result<Self> {
        const DEBIAN: &str = "/usr/lib/postgresql";
        let versions = fs::read_dir(DEBIAN).map_err(|_| not_installed())?;
        let version = |entry: std::io::Result<fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse::<u32>().ok()
        };
        let newest = versions
            .filter_map(version)
            .max()
            .ok_or_else(not_installed)?;
        let bin = Path::new(DEBIAN).join(newest.to_string()).join("bin");
        let user = if rustix::process::geteuid().is_root() {
            Some(ids("postgres")?)
        } else {
            None
        };
        Ok(Self { bin, user })
    }

    /// Gives a directory to the server's user.
    pub(super) fn give(&self, dir: &Path) -> Result<()> {
        if let Some((user, group)) = self.user {
            chown(dir, Some(user), Some(group))
                .map_err(Failure::to(format!("give {} away", dir.display())))?;
        }
        Ok(())
    }

    pub(super) fn command(&self, program: &str) -> Command {
        let Some((user, group)) = self.user else {
            return Command::new(program);
        };
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={group}"));
        // A change of user clears the parent-death signal, so `setpriv` sets the signal again.
        command.args(["--clear-groups", "--pdeathsig", "KILL", "--", program]);
        command
    }

    pub(super) fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        succeeded(program, self.command(program).args(args).output())
    }

    /// An empty cluster, made once per machine and copied for each server.
    pub(super) fn template(&self) -> Result<String> {
        let version = self.bin.components().rev().nth(1);
        let version = version.map_or_else(String::new, |v| {
            v.as_os_str().to_string_lossy().into_owned()
        });
        let user = self
            .user
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
        let name = format!("fencelock-template-postgres-{version}-{user}");
        let template = std::env::temp_dir().join(name);
        let path = template.to_string_lossy().into_owned();
        if template.is_dir() {
            return Ok(path);
        }
        let dir = Dir::new("initdb")?;
        self.give(dir.path())?;
        let fresh = dir.join("data");
        let initdb = self.bin.join("initdb").to_string_lossy().into_owned();
        let mut args = vec!["-D", &fresh, "-A", "trust", "-U", "postgres"];
        args.extend(["-N", "--no-instructions", "-E", "UTF8", "--locale=C"]);
        self.run(&initdb, &args)?;
        // Another process may have been first. Its template is the same.
        if let Err(error) = fs::rename(&fresh, &template)
            && !template.is_dir()
        {
            return Err(Failure::to(format!("keep {path}"))(error));
        }
        Ok(path)
    }

    pub(super) fn launch(
        &self,
        dir: &Dir,
        data: &str,
        clock: Option<&ClockShim>,
        more: &[&str],
    ) -> Result<Process> {
        let open = File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"));
        let log = open.map_err(Failure::to("open a log for postgres"))?;
        let errors = log
            .try_clone()
            .map_err(Failure::to("open a log for postgres"))?;
        let program = self.bin.join("postgres").to_string_lossy().into_owned();
        let mut command = self.command(&program);
        command
            .args(["-D", data])
            .args(more)
            .current_dir(dir.path());
        command.envs(clock.into_iter().flat_map(ClockShim::env));
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: log.into(),
            stderr: errors.into(),
        };
        Process::spawn(&command, streams)
    }
}

fn not_installed() -> Failure {
    Failure::new(
        "postgres is not installed; install it with: apt-get install -y --no-install-recommends postgresql",
    )
}

/// The ids of a user and its group.
fn ids(user: &str) -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").map_err(Failure::to("read /etc/passwd"))?;
    let line = passwd
        .lines()
        .find_map(|line| line.strip_prefix(user)?.strip_prefix(':'));
    let mut fields = line.into_iter().flat_map(|line| line.split(':')).skip(1);
    let mut number = || fields.next()?.parse().ok();
    let ids = number().zip(number());
    ids.ok_or_else(|| Failure::new(format!("there is no user {user} to run PostgreSQL as")))
}

/// Writes a file that the server's user can read.
pub(super) fn write(path: &str, text: &str) -> Result<()> {
    let mode = fs::Permissions::from_mode(0o644);
    let written = fs::write(path, text).and_then(|()| fs::set_permissions(path, mode));
    written.map_err(Failure::to(format!("write {path}")))
}

pub(super) fn succeeded(
    program: &str,
    run: std::io::Result<std::process::Output>,
) -> Result<String> {
    let output = run.map_err(Failure::to(format!("run {program}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("{program} fails: {}", said.trim())));
    }
    let answer = String::from_utf8_lossy(&output.stdout);
    Ok(answer.trim_end().to_owned())
}
