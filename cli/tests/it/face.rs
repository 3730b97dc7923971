//! What users see of the libraries. Types may grow, and an example shows every type and calls every function for users.

use std::fs;
use std::path::{Path, PathBuf};

use crate::house::sources;

/// Types that are closed on purpose: code that gets one must handle all cases, or the type is a plain value.
const CLOSED: [&str; 8] = [
    "Attempt", "Cursor", "Event", "Evict", "Leave", "Mode", "Token", "Version",
];

/// The libraries that users and authors of engines depend on.
const LIBRARIES: [&str; 13] = [
    "crates/composite",
    "crates/config",
    "crates/core",
    "crates/fence",
    "crates/fencelock",
    "crates/versioned",
    "engines/etcd",
    "engines/http",
    "engines/mysql",
    "engines/postgres",
    "engines/redis",
    "engines/sqlite",
    "engines/zookeeper",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The files of the libraries, with their lines.
fn files() -> Vec<(PathBuf, Vec<String>)> {
    let mut paths = Vec::new();
    for library in LIBRARIES {
        sources(&root().join(library).join("src"), &mut paths);
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text.lines().map(str::to_owned).collect())
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn public_types_may_grow() {
    let mut closed = Vec::new();
    let mut types = 0;
    for (path, lines) in files() {
        for (at, line) in lines.iter().enumerate() {
            let is_struct = line.starts_with("pub struct ");
            if !is_struct && !line.starts_with("pub enum ") {
                continue;
            }
            types += 1;
            let name = line.split([' ', '<', '(', ';']).nth(2).unwrap();
            let body = lines[at..].iter().take_while(|line| *line != "}");
            let is_open = is_struct
                && !line.contains("(pub ")
                && (line.ends_with(';') || !body.skip(1).any(|line| line.starts_with("    pub ")));
            let above = lines[..at].iter().rev();
            let mut above =
                above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
            if !is_open && !above.any(|line| line == "#[non_exhaustive]") && !CLOSED.contains(&name)
            {
                closed.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(types > 120, "only {types} types were found");
    assert!(closed.is_empty(), "not #[non_exhaustive]: {closed:#?}");
}

#[test]
fn an_example_shows_what_users_see() {
    let files = files();
    let mut examples = String::new();
    for (_, lines) in &files {
        examples += &documented_code(lines);
    }
    for folder in ["crates/fence/examples", "crates/fencelock/examples"] {
        let mut programs = Vec::new();
        sources(&root().join(folder), &mut programs);
        for program in programs {
            examples += &fs::read_to_string(program).unwrap();
        }
    }
    let mut missing = Vec::new();
    let (mut functions, mut types) = (0, 0);
    for (path, lines) in files.iter().filter(|(path, _)| is_for_users(path)) {
        for (at, line) in lines.iter().enumerate() {
            let (name, is_shown) = if let Some(name) = public_function(line) {
                functions += 1;
                (name, calls(&examples, name))
            } else if let Some(name) = public_type(line) {
                types += 1;
                (name, has_example(&lines[..at]) || names(&examples, name))
            } else {
                continue;
            };
            if !is_shown {
                missing.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(functions > 250, "only {functions} functions were found");
    assert!(types > 70, "only {types} types were found");
    assert!(missing.is_empty(), "in no example: {missing:#?}");
}

fn calls(code: &str, name: &str) -> bool {
    let call = format!("{name}(");
    let mut calls = code.match_indices(&call);
    calls.any(|(at, _)| begins_word(code, at))
}

/// Whether the name is there as a whole word.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let after = code[at + name.len()..].chars().next();
        begins_word(code, at) && after.is_none_or(|c| !is_in_word(c))
    })
}

fn begins_word(code: &str, at: usize) -> bool {
    let before = code[..at].chars().next_back();
    before.is_none_or(|c| !is_in_word(c))
}

fn is_in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether users call what is in this file: the public face, the layers and typed options. The rest is for authors of
/// engines, and for the command.
fn is_for_users(path: &Path) -> bool {
    let path = path.strip_prefix(root()).unwrap().to_str().unwrap();
    let authors = ["engine/", "support/", "runtime/", "planted.rs"];
    match path.split_once('/') {
        Some(("engines", file)) => file.ends_with("/options.rs"),
        Some((_, file)) => {
            !file.starts_with("composite/")
                && !file.starts_with("config/")
                && !authors
                    .iter()
                    .any(|part| file.starts_with(&format!("core/src/{part}")))
        }
        None => false,
    }
}

fn public_function(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub ")?;
    let line = line
        .trim_start_matches("const ")
        .trim_start_matches("async ");
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

fn public_type(line: &str) -> Option<&str> {
    let kinds = ["pub struct ", "pub enum ", "pub trait "];
    let line = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    line.split(['<', '(', ';', ':', ' ']).next()
}

/// Whether the documentation at the end of these lines has an example.
fn has_example(above: &[String]) -> bool {
    let above = above.iter().rev();
    let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    above.any(|line| line.starts_with("/// ```"))
}

/// The code in the documentation of a file.
fn documented_code(lines: &[String]) -> String {
    let mut code = String::new();
    let mut inside = false;
    for line in lines {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or(line.strip_prefix("//!")) else {
            inside = false;
            continue;
        };
        match text.trim() {
            "```" | "```no_run" => inside = !inside,
            text if inside => code += &format!(" {text}\n"),
            _ => {}
        }
    }
    code
}
