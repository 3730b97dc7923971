//! Lock libraries of other languages for one Redis, each in worker processes of its own.

use std::path::{Path, PathBuf};

const PYTHON: &str = include_str!("../peers/redis_worker.py");
const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/node_worker.mjs");

/// A library of another language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    RedisPy,
    RedlockPy,
    Pottery,
    NodeRedlock,
}

/// The libraries that tools/interop/setup.sh has installed.
pub(crate) fn installed() -> impl Iterator<Item = Foreign> {
    let there = |foreign: &Foreign| foreign.program().is_some();
    Foreign::ALL.into_iter().filter(there)
}

impl Foreign {
    pub(crate) const ALL: [Self; 4] = [
        Self::RedisPy,
        Self::RedlockPy,
        Self::Pottery,
        Self::NodeRedlock,
    ];

    /// Its name, which its worker knows too.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RedisPy => "redis-py",
            Self::RedlockPy => "redlock-py",
            Self::Pottery => "pottery",
            Self::NodeRedlock => "node-redlock",
        }
    }

    /// The program of its worker, and its arguments; `None` if tools/interop/setup.sh has not installed it.
    pub(crate) fn program(self) -> Option<(PathBuf, Vec<String>)> {
        let package = match self {
            Self::RedisPy => "redis/lock.py",
            Self::RedlockPy => "redlock/__init__.py",
            Self::Pottery => "pottery/redlock.py",
            Self::NodeRedlock => {
                let into = interop("node_modules/redlock5")?;
                let args = vec![NODE.into(), into.to_string_lossy().into_owned()];
                return Some(("node".into(), args));
            }
        };
        let python = interop("venv/bin/python")?.join("venv");
        let has = |packages: &Path| packages.join("site-packages").join(package).exists();
        let mut versions = std::fs::read_dir(python.join("lib")).ok()?.flatten();
        let args = vec!["-c".into(), PYTHON.into()];
        let there = versions.any(|version| has(&version.path()));
        there.then(|| (python.join("bin/python"), args))
    }
}

/// Where tools/interop/setup.sh installs: next to the profiles in the target directory. `None` if `part` is not there.
pub(crate) fn interop(part: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let mut above = program.ancestors();
    above.find_map(|directory| {
        let into = directory.join("interop");
        into.join(part).exists().then_some(into)
    })
}
