//! The rules for every file: no two files of a crate import each other, directly or through other files; no function
//! has more than 80 lines of code; a file of more than 600 lines says why at its top.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The maximum number of lines of code in a function. Clippy does not check the tests of async code.
const FUNCTION: usize = 80;
/// The maximum number of lines of a file without the words "(Long by" at its top.
const FILE: usize = 600;

type Module = Vec<String>;
type Imports = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn no_crate_has_a_circle_of_imports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut circles = Vec::new();
    let mut files = 0;
    for folder in ["crates", "engines", "tools"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            files += look_into(&entry.unwrap().path().join("src"), &mut circles);
        }
    }
    for folder in ["cli/src", "server/src"] {
        files += look_into(&root.join(folder), &mut circles);
    }
    assert!(files > 150, "only {files} files were found");
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn functions_and_files_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for folder in ["cli", "crates", "engines", "server", "tools"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 500, "only {} files were found", files.len());
    let mut long = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() > FILE && !lines[0].contains("(Long by") {
            long.push(format!("{}: {} lines", path.display(), lines.len()));
        }
        let functions = (0..lines.len()).filter_map(|at| function(&lines[at..]));
        let too_long = functions.filter(|(_, length)| *length > FUNCTION);
        long.extend(too_long.map(|(name, length)| format!("{}: {name}: {length}", path.display())));
    }
    assert!(long.is_empty(), "{long:#?}");
}

/// The same question has the same file name in every engine (ARCHITECTURE.md).
#[test]
fn engines_have_the_same_files() {
    const FILES: [&str; 14] = [
        "engine",
        "options",
        "config",
        "connection",
        "state",
        "entry",
        "acquire",
        "wait",
        "renew",
        "release",
        "inspect",
        "diagnose",
        "stored",
        "error",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let names = |engine: &str| {
        let mut files = Vec::new();
        sources(&root.join("engines").join(engine).join("src"), &mut files);
        let stems = files
            .iter()
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
        stems.collect::<BTreeSet<String>>()
    };
    for entry in fs::read_dir(root.join("engines")).unwrap() {
        let engine = entry.unwrap().file_name().into_string().unwrap();
        let mut has = names(&engine);
        match &*engine {
            // What the two databases share.
            "sql" => continue,
            "mysql" | "postgres" => has.extend(names("sql")),
            // The service has the stored format, and finds what is wrong with its store.
            "http" => has.extend(["stored", "diagnose"].map(str::to_owned)),
            _ => {}
        }
        let missing: Vec<_> = FILES.iter().filter(|file| !has.contains(**file)).collect();
        assert!(missing.is_empty(), "engines/{engine} has no {missing:?}");
    }
}

/// Otherwise `cargo build` and `cargo doc` of the workspace build nearly all of it again.
#[test]
fn tests_add_no_feature_to_what_they_share_with_the_rest() {
    let without = features("normal,build");
    let with = features("normal,build,dev");
    let names: BTreeSet<&str> = without
        .iter()
        .filter_map(|line| line.split('|').next())
        .collect();
    let differ = with.difference(&without);
    let differ: Vec<_> = differ
        .filter(|line| {
            line.split('|')
                .next()
                .is_some_and(|name| names.contains(name))
        })
        .collect();
    assert!(without.len() > 200, "only {} packages", without.len());
    assert!(
        differ.is_empty(),
        "put these into tools/interop/Cargo.toml: {differ:#?}"
    );
}

/// All packages from which the workspace is built, each with its features.
fn features(edges: &str) -> BTreeSet<String> {
    let words = [
        "tree",
        "--locked",
        "--workspace",
        "--features=fencelock-cli/all",
        "--prefix=none",
        "--format={p}|{f}",
        "-e",
        edges,
    ];
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = std::process::Command::new(cargo)
        .args(words)
        .output()
        .unwrap();
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let tree = String::from_utf8(tree.stdout).unwrap();
    // A package whose dependencies are listed elsewhere has this mark.
    let lines = tree.lines().map(|line| line.trim_end_matches(" (*)"));
    lines.map(str::to_owned).collect()
}

pub(crate) fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // A crate outside the workspace has its own folder for builds.
            if !path.ends_with("target") {
                sources(&path, files);
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

/// The first line of the function that begins here, and the number of lines of code in its body. All code is formatted,
/// so a function ends with the first brace below its own beginning.
fn function<'a>(lines: &[&'a str]) -> Option<(&'a str, usize)> {
    let first = lines[0].trim_start();
    let (before, _) = first.split_once("fn ")?;
    let words = ["async", "const", "extern", "unsafe"];
    let is_function = before
        .split_whitespace()
        .all(|word| word.starts_with("pub") || words.contains(&word));
    if !is_function || first.ends_with(['}', ';']) {
        return None;
    }
    let end = format!("{}}}", &lines[0][..lines[0].len() - first.len()]);
    let body = lines[1..].iter().take_while(|line| **line != end);
    let code = body.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"));
    Some((first, code.count()))
}

/// In the core each layer imports only layers above it in the map of ARCHITECTURE.md.
#[test]
fn layers_of_the_core_import_what_is_above() {
    const LAYERS: [&str; 6] = ["types", "engine", "support", "memory", "layers", "runtime"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = BTreeMap::new();
    collect(&root.join("crates/core/src"), &[], &mut files);
    let layer = |module: &Module| {
        let place = LAYERS
            .iter()
            .position(|layer| module.first().is_some_and(|first| first == layer));
        // The last layer is what users touch.
        place.unwrap_or(LAYERS.len())
    };
    let below: Vec<_> = imports(&files)
        .into_iter()
        .flat_map(|(module, imports)| {
            imports
                .into_iter()
                .map(move |import| (module.clone(), import))
        })
        // The root of the crate declares all modules, and contains the bugs that are planted on purpose.
        .filter(|(module, import)| {
            !module.is_empty() && !import.is_empty() && import[0] != "planted"
        })
        .filter(|(module, import)| layer(import) > layer(module))
        .collect();
    assert!(below.is_empty(), "{below:#?}");
}

/// Finds the circles of one crate. Returns how many files the crate has.
fn look_into(source: &Path, circles: &mut Vec<String>) -> usize {
    let mut files = BTreeMap::new();
    collect(source, &[], &mut files);
    let imports = imports(&files);
    for module in files.keys() {
        if reaches(&imports, module) {
            let module = module.join("::");
            circles.push(format!("{}: crate::{module}", source.display()));
        }
    }
    files.len()
}

fn collect(folder: &Path, above: &[String], files: &mut BTreeMap<Module, PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut module = above.to_vec();
        if path.is_dir() {
            module.push(name);
            collect(&path, &module, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            // The root of a crate is the module without a name.
            if !["mod", "lib", "main"].contains(&&*name) {
                module.push(name);
            }
            files.insert(module, path);
        }
    }
}

/// The files from which each file imports, without its tests.
fn imports(files: &BTreeMap<Module, PathBuf>) -> Imports {
    let imports = files.iter().map(|(module, path)| {
        let text = fs::read_to_string(path).unwrap();
        let code: String = without_tests(&text)
            .map(|line| line.split("//").next().unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n");
        let found = paths(&code).into_iter();
        let found = found.filter_map(|path| resolve(files, module, &path));
        let mut found: BTreeSet<Module> = found.filter(|to| to != module).collect();
        // A file uses its own modules without `use`.
        let children = files
            .keys()
            .filter(|child| child.split_last().is_some_and(|(_, above)| above == module));
        found.extend(
            children
                .filter(|child| names(&code, &child[module.len()]))
                .cloned(),
        );
        (module.clone(), found)
    });
    imports.collect()
}

/// The lines of a file up to its tests. Any other item for tests loses its first line only.
fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if lines[at] == "#[cfg(test)]" {
            at += 1;
            while lines[at].starts_with("#[") {
                at += 1;
            }
            if lines[at].starts_with("mod ") && lines[at].ends_with('{') {
                break;
            }
        } else {
            kept.push(lines[at]);
        }
        at += 1;
    }
    kept.into_iter()
}

/// Whether a path in this code begins with this module.
fn names(code: &str, module: &str) -> bool {
    let path = format!("{module}::");
    code.match_indices(&path).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || c == '_' || c == ':'))
    })
}

/// The paths that begin with `crate`, `self` or `super`, and those of `use` items, each in full.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let before = rest[..at].chars().next_back();
        rest = &rest[at + 4..];
        if before.is_none_or(|before| before.is_whitespace() || before == ')') {
            let item = rest.split(';').next().unwrap_or_default();
            expand(&[], item, &mut found);
        }
    }
    for start in ["crate::", "super::", "self::"] {
        let mut rest = code;
        while let Some(at) = rest.find(start) {
            let inner = rest[..at].ends_with("::");
            rest = &rest[at..];
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let path = &rest[..end.unwrap_or(rest.len())];
            // A path that ends here begins a group, which is read above.
            if !inner && !path.ends_with("::") {
                found.push(path.split("::").map(str::to_owned).collect());
            }
            rest = &rest[path.len()..];
        }
    }
    found
}

/// `a::{b, c::d}` in full: `a::b` and `a::c::d`.
fn expand(above: &[String], item: &str, found: &mut Vec<Vec<String>>) {
    let mut depth = 0;
    let parts = item.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        let (head, inner) = match part.split_once('{') {
            Some((head, inner)) => (head.trim_end_matches("::"), inner.strip_suffix('}')),
            None => (part.split(" as ").next().unwrap_or(part), None),
        };
        let mut path = above.to_vec();
        path.extend(
            head.split("::")
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        );
        match inner {
            Some(inner) => expand(&path, inner, found),
            None => found.push(path),
        }
    }
}

/// The file to which a path leads, if it is a file of this crate.
fn resolve(files: &BTreeMap<Module, PathBuf>, from: &Module, path: &[String]) -> Option<Module> {
    let mut to = match path.first()?.as_str() {
        "crate" => Module::new(),
        "self" | "super" => from.clone(),
        child => {
            // A module below this one, or another crate.
            let below = [&from[..], &[child.to_owned()]].concat();
            files.contains_key(&below).then(|| from.clone())?
        }
    };
    for name in path {
        match name.as_str() {
            "crate" | "self" => {}
            "super" => drop(to.pop()),
            name => to.push(name.trim().to_owned()),
        }
    }
    while !files.contains_key(&to) {
        to.pop()?;
    }
    Some(to)
}

/// Whether a module reaches itself.
fn reaches(imports: &Imports, module: &Module) -> bool {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&Module> = imports[module].iter().collect();
    while let Some(next) = open.pop() {
        if next == module {
            return true;
        }
        if seen.insert(next) {
            open.extend(imports.get(next).into_iter().flatten());
        }
    }
    false
}
