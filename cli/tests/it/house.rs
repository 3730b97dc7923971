//! No two files of a crate import each other, not even by way of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

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

/// Finds the circles of one crate; how many files it has.
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

/// Which files each file imports from, its tests left out.
fn imports(files: &BTreeMap<Module, PathBuf>) -> Imports {
    let imports = files.iter().map(|(module, path)| {
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: String = code
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n");
        let found = paths(&code).into_iter();
        let found = found.filter_map(|path| resolve(files, module, &path));
        (module.clone(), found.filter(|to| to != module).collect())
    });
    imports.collect()
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
            // One that ends here is the beginning of a group, which is read above.
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

/// The file that a path leads to, if that is one of this crate.
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
