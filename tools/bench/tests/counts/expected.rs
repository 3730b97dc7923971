//! The file of expected counts, and the comparison with it.

use std::fmt::Write as _;
use std::process::Command;
use std::{cmp, fs};

use crate::failed::Failed;
use crate::paths::{PATHS, Path};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/counts.txt");

const HEAD: &str = "\
# What one operation on a hot path costs the client: instructions and allocations, in a build for development with all
# features. docs/benchmarks.md says how they are counted.
#
# compare:      CARGO_INCREMENTAL=0 cargo test --workspace --features fencelock-cli/all --test counts
# write again:  CARGO_INCREMENTAL=0 cargo test --workspace --features fencelock-cli/all --test counts -- --renew
#
# A path fails if its cost has grown by more than its tolerance, in percent. With another compiler four times the tolerance
# is allowed.
";

/// What to do about a path that costs too much.
pub(crate) const ADVICE: &str = "
If the change is worth this cost, write tools/bench/counts.txt again (its head says how), and give the reason in the commit.
Otherwise find the cause: run the same at the commit before, and compare the output of callgrind_annotate for both.";

/// The factor of the tolerance for another compiler than that of the file.
const OTHER_COMPILER: f64 = 4.0;

/// A difference of fewer allocations than this is ignored: a buffer or a table grows now and then.
const ALLOCATIONS: f64 = 0.1;

/// The tolerance of a new path in the file, in percent.
const TOLERANCE: f64 = 3.0;

/// What one operation costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) allocations: f64,
}

/// The content of the file.
pub(crate) struct Expected {
    same_compiler: bool,
    lines: Vec<Line>,
}

struct Line {
    path: String,
    cost: Cost,
    tolerance: f64,
}

impl Expected {
    pub(crate) fn read() -> Result<Self, Failed> {
        let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
        let expected = Self::parse(&text, &compiler()?);
        expected.ok_or_else(|| format!("{FILE}: not as --renew writes it").into())
    }

    fn parse(text: &str, compiler: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let same_compiler = lines.next()?.strip_prefix("compiler: ")? == compiler;
        let lines = lines.skip(1).map(Line::parse).collect::<Option<_>>()?;
        Some(Self {
            same_compiler,
            lines,
        })
    }

    fn find(&self, path: &Path) -> Option<&Line> {
        self.lines.iter().find(|line| line.path == path.name)
    }

    /// Prints the cost of a path, and its expected cost. Returns whether it costs too much.
    pub(crate) fn judge(&self, path: &Path, cost: &Cost) -> Result<bool, Failed> {
        let line = self.find(path);
        let line =
            line.ok_or_else(|| format!("{FILE}: {} is missing; --renew adds it", path.name))?;
        let tolerance = match self.same_compiler {
            true => line.tolerance,
            false => line.tolerance * OTHER_COMPILER,
        };
        let more = |now: f64, then: f64| (now / then - 1.0) * 100.0;
        let instructions = more(cost.instructions, line.cost.instructions);
        let allocations = more(cost.allocations, line.cost.allocations);
        let allocates_more = cost.allocations - line.cost.allocations > ALLOCATIONS;
        let dear = instructions > tolerance || (allocates_more && allocations > tolerance);
        println!(
            "{} {}: a {} costs {:.0} instructions ({:.0} expected, {instructions:+.1} %) and {:.2} allocations ({:.2} \
             expected, {allocations:+.1} %); {tolerance} % more are tolerated{}",
            if dear { "FAILED" } else { "ok    " },
            path.name,
            path.operation,
            cost.instructions,
            line.cost.instructions,
            cost.allocations,
            line.cost.allocations,
            if self.same_compiler {
                ""
            } else {
                ", since this is another compiler than that of the file"
            },
        );
        Ok(dear)
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut columns = line.split('|').map(str::trim);
        let path = columns.next()?.to_owned();
        let mut number = || columns.next()?.parse().ok();
        let cost = Cost {
            instructions: number()?,
            allocations: number()?,
        };
        let tolerance = number()?;
        Some(Self {
            path,
            cost,
            tolerance,
        })
    }
}

/// Writes the file again. Tolerances stay.
pub(crate) fn write(costs: &[Cost]) -> Result<(), Failed> {
    let before = Expected::read().ok();
    let mut text = format!("{HEAD}compiler: {}\n", compiler()?);
    let width = PATHS.iter().map(|path| path.name.len()).fold(0, cmp::max);
    writeln!(
        text,
        "{:width$} | instructions | allocations | tolerance",
        "path"
    )?;
    for (path, cost) in PATHS.iter().zip(costs) {
        let line = before.as_ref().and_then(|before| before.find(path));
        let tolerance = line.map_or(TOLERANCE, |line| line.tolerance);
        let (instructions, allocations) = (cost.instructions, cost.allocations);
        writeln!(
            text,
            "{:width$} | {instructions:12.0} | {allocations:11.2} | {tolerance:9}",
            path.name
        )?;
    }
    fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    println!("wrote {FILE}");
    Ok(())
}

/// The compiler and the machine that it compiles for.
fn compiler() -> Result<String, Failed> {
    let told = Command::new("rustc").arg("-vV").output();
    let told = told.map_err(|error| format!("rustc: {error}"))?;
    let told = String::from_utf8(told.stdout)?;
    let value = |key: &str| told.lines().find_map(|line| line.strip_prefix(key));
    let (release, host) = (value("release: "), value("host: "));
    Ok(format!(
        "rustc {} {}",
        release.unwrap_or("?"),
        host.unwrap_or("?")
    ))
}
