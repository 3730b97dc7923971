//! Runs a program under valgrind's callgrind, and reads the counts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::failed::Failed;

/// What one part of the program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) instructions: u64,
    pub(crate) allocations: u64,
}

/// The functions of the C library that allocate memory.
const ALLOCATORS: [&str; 5] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
];

/// Runs this program again under callgrind with these arguments. Callgrind writes its counts to `into` at each call of
/// the function `boundary`.
pub(crate) fn run(into: &Path, boundary: &str, args: &[&str]) -> Result<(), Failed> {
    drop(fs::remove_dir_all(into));
    fs::create_dir_all(into)?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet"]);
    command.arg(format!("--dump-before={boundary}"));
    command.arg(format!(
        "--callgrind-out-file={}",
        part(into, None).display()
    ));
    command.arg(env::current_exe()?).args(args);
    let ended = command.status();
    let ended = ended.map_err(|error| format!("valgrind: {error}; ./test.sh installs it"))?;
    match ended.success() {
        true => Ok(()),
        false => Err(format!("the counted process: {ended}").into()),
    }
}

/// The file of a part. Parts are numbered from 1.
pub(crate) fn part(into: &Path, number: Option<usize>) -> PathBuf {
    into.join(match number {
        Some(number) => format!("callgrind.out.{number}"),
        None => "callgrind.out".to_owned(),
    })
}

/// What the part of the program in this file did.
pub(crate) fn read(file: &Path) -> Result<Counted, Failed> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let counted = parse(&text);
    counted.ok_or_else(|| format!("{}: not a file of callgrind", file.display()).into())
}

fn parse(text: &str) -> Option<Counted> {
    let mut names = HashMap::new();
    let (mut instructions, mut allocations) = (None, 0);
    let mut called = "";
    for line in text.lines() {
        let (key, value) = line.split_once(['=', ':']).unwrap_or_default();
        match key {
            // The name of a function is written once: `fn=(12) malloc`, and later only `cfn=(12)`.
            "fn" | "cfn" => {
                let (id, name) = value.split_once(' ').unwrap_or((value, ""));
                let known = names.entry(id).or_insert(name);
                if key == "cfn" {
                    called = known;
                }
            }
            "calls" if ALLOCATORS.contains(&called) => {
                allocations += value.split(' ').next()?.parse::<u64>().ok()?;
            }
            "totals" => instructions = Some(value.trim().parse().ok()?),
            _ => {}
        }
    }
    Some(Counted {
        instructions: instructions?,
        allocations,
    })
}
