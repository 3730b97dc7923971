//! The service answers every request as its OpenAPI document says. A fuzzer (schemathesis) makes good and bad requests
//! from the document, and compares the answers with it.

use std::process::{Command, Stdio};

use fencelock_testbed::Dir;

use crate::program::installed;
use crate::service::Service;

/// Every status, type, header and body must be in the document, and the service must not fail.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance";

/// The number of requests for each route.
const EXAMPLES: &str = "60";

fn answers_as_described(change: &str, mode: &str) {
    let service = Service::start();
    let dir = Dir::new("described").expect("a directory");
    let url = format!("http://127.0.0.1:{}", service.replicas[0].port());
    let interop = installed();
    let fuzzer = interop.with_file_name("venv").join("bin/schemathesis");
    let mut command = Command::new(fuzzer);
    command
        .args(["run", "--checks", CHECKS, "--mode", mode, "--no-shrink"])
        .args(["--max-examples", EXAMPLES, "--continue-on-failure"])
        // A stream does not end by itself.
        .args(["--exclude-path", "/v1/events"])
        .args(["--request-timeout", "20", "--warnings", "off"])
        .arg(format!("{url}/v1/openapi.json"))
        .env("SCHEMATHESIS_HOOKS", "described")
        .env(
            "PYTHONPATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/clients"),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("DESCRIBED", change)
        .current_dir(dir.path())
        .stdin(Stdio::null());
    let ran = command.output().expect("schemathesis");
    let out = String::from_utf8_lossy(&ran.stdout);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{out}\n{err}");
    // The fuzzer did send requests.
    assert!(out.contains("No issues found"), "{out}\n{err}");
}

#[test]
fn answers_about_anything_are_as_described() {
    answers_as_described("bounds", "all");
}

#[test]
fn answers_about_one_claim_are_as_described() {
    answers_as_described("one-claim", "positive");
}
