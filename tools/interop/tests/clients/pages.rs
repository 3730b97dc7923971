//! What our pages show is run: docs/http.md, and the examples in the clients' READMEs with the built packages.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use fencelock_testbed::{Dir, Etcd, Port};

use crate::program::{installed, node_dir, python};
use crate::service::{Service, fencelock};

const HTTP: &str = include_str!("../../../../docs/http.md");
const TYPESCRIPT: &str = include_str!("../../../../clients/typescript/README.md");
const PYTHON: &str = include_str!("../../../../clients/python/README.md");

/// The address of the service on the pages.
const ADDRESS: &str = "127.0.0.1:7420";

/// How the list of replicas on docs/http.md begins.
const REPLICAS: &str = "replicas=(http:";

/// The blocks of a page in one language, with another address of the service.
fn blocks(page: &str, language: &str, port: u16) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let here = format!("127.0.0.1:{port}");
    blocks.map(|block| block.replace(ADDRESS, &here)).collect()
}

fn assert_runs(mut command: Command, what: &str) -> String {
    let ran = command.stdin(Stdio::null()).output().expect("it runs");
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{what}\n{out}\n{err}");
    out.into_owned()
}

#[test]
fn the_commands_of_the_page_on_http_run() {
    let dir = Dir::new("http").expect("a directory");
    let store = format!("sqlite:{}", dir.join("locks.db"));
    // A replica that does not answer stands first in the list: the loop goes to the next one.
    let away = Port::free().expect("a port");
    let replicas = format!("replicas=(http://127.0.0.1:{} http:", away.number());
    the_page_on_http_runs(&dir, &store, &replicas);
}

/// On etcd, claims belong to the replica.
#[test]
fn the_commands_of_the_page_on_http_run_on_etcd() {
    let etcd = Etcd::start().expect("etcd");
    let dir = Dir::new("http-etcd").expect("a directory");
    the_page_on_http_runs(&dir, &etcd.url(), REPLICAS);
}

/// All blocks of the page are one session in one shell, with the service that the page itself starts.
fn the_page_on_http_runs(dir: &Dir, store: &str, replicas: &str) {
    let port = Port::free().expect("a port");
    let blocks = blocks(HTTP, "sh", port.number());
    assert!(blocks.len() >= 6, "only {} blocks were found", blocks.len());
    let path = std::env::var("PATH").expect("PATH");
    let program: PathBuf = fencelock();
    let bin = program.parent().expect("a directory").display();
    // Ends what the page has started, also if a command fails.
    let session = blocks.join("\n");
    assert!(session.contains(REPLICAS));
    let session = session.replace(REPLICAS, replicas);
    let script = format!("trap 'kill $(jobs -p)' EXIT\n{session}");
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(dir.path())
        .env_remove("FENCELOCK_OWNER")
        .env("FENCELOCK_STORE", store)
        .env("PATH", format!("{bin}:{path}"));
    assert_runs(command, &script);
}

#[test]
fn the_example_of_the_typescript_client_runs() {
    let service = Service::start();
    let examples = blocks(TYPESCRIPT, "js", service.replicas[0].port());
    assert_eq!(examples.len(), 1);
    let dir = node_dir();
    for (file, example) in [
        ("module.mjs", examples[0].clone()),
        ("common.cjs", as_common(&examples[0])),
    ] {
        std::fs::write(dir.join(file), &example).expect("written");
        let mut command = Command::new("node");
        command.arg(file).current_dir(dir.path());
        let out = assert_runs(command, &example);
        assert!(out.contains("write under token "), "{out}");
    }
}

/// The example as a CommonJS program.
fn as_common(example: &str) -> String {
    let (import, rest) = example.split_once('\n').expect("lines");
    assert_eq!(import, r#"import { connect } from "fencelock";"#);
    format!("const {{ connect }} = require(\"fencelock\");\n(async () => {{{rest}}})();\n")
}

/// The types fit the example with `await using`, as a program of a user sees them.
#[test]
fn the_types_of_the_typescript_client_are_found() {
    let examples = blocks(TYPESCRIPT, "ts", 1);
    assert_eq!(examples.len(), 1);
    let dir = node_dir();
    let program = format!(
        "import {{ connect, type Lock }} from \"fencelock\";\nconst client = connect(\"http://127.0.0.1:1\");\n{}\n\
         export const held: Lock = lock;\n",
        examples[0]
    );
    for (file, program) in [
        ("module.mts", program.clone()),
        (
            "common.cts",
            "import fencelock = require(\"fencelock\");\nexport const client: fencelock.Client = fencelock.connect([]);\n"
                .to_owned(),
        ),
    ] {
        std::fs::write(dir.join(file), program).expect("written");
    }
    let mut command = Command::new("node_modules/.bin/tsc");
    command.args("--noEmit --strict --target es2022 --lib es2022,dom --module nodenext module.mts common.cts".split(' '));
    command.current_dir(dir.path());
    let out = command.output().expect("tsc");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
fn the_examples_of_the_python_client_run() {
    let service = Service::start();
    let examples = blocks(PYTHON, "python", service.replicas[0].port());
    assert_eq!(examples.len(), 2);
    for (example, says) in examples
        .iter()
        .zip(["write under token ", "done under token "])
    {
        let mut command = python();
        command.args(["-X", "dev", "-c", example]);
        let out = assert_runs(command, example);
        assert!(out.contains(says), "{out}");
    }
}

/// Nothing is sent: the host does not exist, and the client refuses before it looks up the host.
#[test]
fn a_token_is_not_sent_over_plain_http() {
    let dir = node_dir();
    let mut node = Command::new("node");
    node.current_dir(dir.path()).args([
        "-e",
        "const { connect } = require('fencelock');
         for (const host of ['127.0.0.1', '[::1]', 'localhost']) connect(`http://${host}:1`, { token: 'flk_x' });
         connect('https://locks.example', { token: 'flk_x' });
         try { connect('http://locks.example', { token: 'flk_x' }); } catch (error) { console.log(error.message); }",
    ]);
    let mut python = python();
    python.args([
        "-c",
        "import fencelock
for host in ['127.0.0.1', '[::1]', 'localhost']:
    fencelock.AsyncClient(f'http://{host}:1', token='flk_x')
fencelock.AsyncClient('https://locks.example', token='flk_x')
try:
    fencelock.Client('http://locks.example', token='flk_x')
except ValueError as error:
    print(error)",
    ]);
    for command in [node, python] {
        let out = assert_runs(command, "a token and plain http");
        assert!(out.contains("over plain http; use https"), "{out}");
    }
}

/// The published packages have the texts of the licences that they name.
#[test]
fn the_packages_have_the_licences() {
    let list = r#"set -eu
        for package in fencelock-0.1.0.tgz fencelock-0.1.0.tar.gz; do
            tar -tzf "$package"
        done
        python3 -m zipfile -l fencelock-0.1.0-py3-none-any.whl"#;
    let mut command = Command::new("sh");
    command.args(["-c", list]).current_dir(installed());
    let listed = assert_runs(command, list);
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        assert_eq!(listed.matches(licence).count(), 3, "{licence}: {listed}");
    }
    // They are the same as those of the tree.
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read(root.join(path)).expect("a file");
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        for client in ["typescript", "python"] {
            let of_client = read(&format!("clients/{client}/{licence}"));
            assert!(of_client == read(licence), "{client}: {licence}");
        }
    }
}
