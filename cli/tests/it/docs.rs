//! The shell commands of docs/fencing.md, docs/composite.md and docs/configuration.md run, the tables of options are
//! complete, and all links of all pages lead somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, finish};

#[test]
fn the_examples_of_the_page_on_fencing_run() {
    run(include_str!("../../../docs/fencing.md"), 5);
}

#[test]
fn the_examples_of_the_page_on_sets_run() {
    run(include_str!("../../../docs/composite.md"), 1);
}

#[test]
fn the_examples_of_the_page_on_the_configuration_file_run() {
    run(include_str!("../../../docs/configuration.md"), 1);
}

/// The pages of stores, with a URL of each kind of store on them.
const STORES: [(&str, &[&str]); 8] = [
    ("sqlite", &["sqlite:"]),
    (
        "redis",
        &["redis://h", "redis+sentinel://h/m", "redis+cluster://h"],
    ),
    ("redlock", &["redlock://h1,h2,h3"]),
    ("mysql", &["mysql://u@h/db"]),
    ("postgres", &["postgres://u@h/db"]),
    ("etcd", &["etcd://h"]),
    ("zookeeper", &["zookeeper://h"]),
    ("http", &["fencelock+http://127.0.0.1"]),
];

#[test]
fn the_pages_of_stores_have_a_table_of_all_options() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/stores");
    let of_every_store = in_tables(&pages.join("README.md"), "| of every store");
    for (page, urls) in STORES {
        let mut taken: BTreeSet<String> = urls.iter().flat_map(|url| options_of(url)).collect();
        taken.retain(|option| option == "prefix" || !of_every_store.contains(option));
        let written = in_tables(&pages.join(page).with_extension("md"), "| option");
        assert_eq!(written, taken, "{page}.md");
    }
}

#[test]
fn the_error_for_an_unknown_option_names_record_where_a_store_takes_it() {
    let takes_record = |url: &str| options_of(url).iter().any(|option| option == "record");
    assert!(takes_record("redlock://h1,h2,h3"));
    assert!(!takes_record("redis://h"));
}

/// The options that a store takes, from its error for an unknown one.
fn options_of(url: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock"));
    let store = format!("{url}?no-such-option=1");
    command.args(["show", "a", "--store", &store]);
    let refused = command.stdin(Stdio::null()).output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    let (_, options) = why.trim_end().split_once("it takes ").expect(&why);
    options.split(", ").map(str::to_owned).collect()
}

/// The code words in the first column of the tables that begin with this text.
fn in_tables(page: &Path, begin: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let tables = text.split("\n\n").filter(|table| table.starts_with(begin));
    let rows = tables.flat_map(|table| table.lines().skip(2));
    let first = rows.map(|row| row.split('|').nth(1).unwrap());
    first
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

fn run(page: &str, count: usize) {
    let blocks = page.split("```sh\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), count);
    for block in blocks {
        let fixture = Fixture::new();
        let here = std::path::Path::new(env!("CARGO_BIN_EXE_fencelock"));
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", here.parent().unwrap().display());
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", block])
            .current_dir(fixture.path(""))
            .env_remove("FENCELOCK_OWNER")
            .env("FENCELOCK_STORE", fixture.store())
            .env("SHELL", "/bin/sh")
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ran = finish(command);
        assert_eq!(ran.code, 0, "{block}\n{ran:?}");
    }
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut pages = Vec::new();
    for folder in [
        "",
        "docs",
        "docs/stores",
        "clients/python",
        "clients/typescript",
    ] {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        pages.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let mut links = 0;
    let mut broken = Vec::new();
    for page in &pages {
        let text = prose(page);
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if !link.starts_with("https://") {
                links += 1;
                if !leads_somewhere(page, link) {
                    broken.push(format!("{}: {link}", page.display()));
                }
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let file: PathBuf = match file {
        "" => page.to_owned(),
        file => page.parent().unwrap().join(file),
    };
    file.exists() && (anchor.is_empty() || headings(&file).iter().any(|heading| heading == anchor))
}

/// A page without its code blocks.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    text.split("```").step_by(2).collect()
}

/// The anchors of a page's headings.
fn headings(page: &Path) -> Vec<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}
