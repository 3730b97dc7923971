//! Every example runs to its end, and the code in the documentation is from the examples.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

macro_rules! examples {
    ($($name:ident = $path:literal,)*) => {
        $(
            #[path = $path]
            mod $name;

            #[test]
            fn $name() {
                $name::main().unwrap();
            }
        )*

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

examples! {
    at_least = "../../examples/at_least.rs",
    bad_day = "../../examples/bad_day.rs",
    basic = "../../examples/basic.rs",
    blocking = "../../examples/blocking.rs",
    cancellation = "../../examples/cancellation.rs",
    configuration = "../../examples/configuration.rs",
    downgrade = "../../examples/downgrade.rs",
    election = "../../examples/election.rs",
    evict_and_ask = "../../examples/evict_and_ask.rs",
    fence = "../../examples/fence.rs",
    healthy = "../../examples/healthy.rs",
    if_away = "../../examples/if_away.rs",
    lock_delay = "../../examples/lock_delay.rs",
    max_hold = "../../examples/max_hold.rs",
    name_class = "../../examples/name_class.rs",
    observe = "../../examples/observe.rs",
    owner = "../../examples/owner.rs",
    paused_time = "../../examples/paused_time.rs",
    polling = "../../examples/polling.rs",
    promises = "../../examples/promises.rs",
    readme = "../../examples/readme.rs",
    refresh_without_renewal = "../../examples/refresh_without_renewal.rs",
    semaphore = "../../examples/semaphore.rs",
    several = "../../examples/several.rs",
    shards = "../../examples/shards.rs",
    shared = "../../examples/shared.rs",
    try_and_timed = "../../examples/try_and_timed.rs",
    typed_options = "../../examples/typed_options.rs",
    watch = "../../examples/watch.rs",
    with_body = "../../examples/with_body.rs",
}

fn files_in(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_example_is_run() {
    let files = files_in(&package().join("examples"), "rs");
    let mut found: Vec<_> = files.iter().filter_map(|path| path.file_stem()).collect();
    found.sort_unstable();
    assert_eq!(found, NAMES);
}

#[test]
fn code_in_the_documentation_is_from_the_examples() {
    let examples = ["examples", "../fence/examples"]
        .into_iter()
        .flat_map(|folder| files_in(&package().join(folder), "rs"));
    let examples: Vec<String> = examples
        .map(|path| unindented(&fs::read_to_string(path).unwrap()))
        .collect();
    let root = package().join("../..");
    let mut pages = files_in(&root.join("docs"), "md");
    pages.extend(files_in(&root.join("docs/stores"), "md"));
    pages.push(root.join("README.md"));
    let mut blocks = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for block in text.split("```rust\n").skip(1) {
            let block = unindented(block.split("```").next().unwrap());
            let known = examples.iter().any(|example| example.contains(&block));
            assert!(known, "{}: in no example:\n{block}", page.display());
            blocks += 1;
        }
    }
    assert!(blocks > 0);
}

/// The lines without the spaces around them, since a passage may be indented less on a page.
fn unindented(text: &str) -> String {
    text.lines()
        .map(|line| line.trim().to_owned() + "\n")
        .collect()
}
