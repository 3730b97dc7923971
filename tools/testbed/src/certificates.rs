//! Certificates for servers with TLS and for their clients, made by the command `openssl`.

use std::process::Command;

use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::process::program;

/// The names in a server's certificate.
pub(crate) const HERE: &str = "DNS:localhost,IP:127.0.0.1";

/// Makes an authority (`ca.crt`) and its certificate for the server (`server.crt`, `server.key`).
pub(crate) fn make_certificates(dir: &Dir) -> Result<()> {
    make_certificates_for(dir, HERE)
}

/// The same, for a server with these names, such as `DNS:localhost`.
pub(crate) fn make_certificates_for(dir: &Dir, names: &str) -> Result<()> {
    let ca = [
        "-subj",
        "/CN=fencelock testbed",
        "-addext",
        "keyUsage=critical,keyCertSign",
    ];
    make(dir, "ca", &ca)?;
    let names = format!("subjectAltName={names}");
    sign(
        dir,
        "server",
        &["-subj", "/CN=localhost", "-addext", &names],
    )
}

/// Makes a certificate of the same authority for a client with this user name (`client.crt`, `client.key`).
pub(crate) fn make_client_certificate(dir: &Dir, user: &str) -> Result<()> {
    sign(dir, "client", &["-subj", &format!("/CN={user}")])
}

fn sign(dir: &Dir, file: &str, more: &[&str]) -> Result<()> {
    let authority = ["-CA", "ca.crt", "-CAkey", "ca.key"];
    let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
    make(dir, file, &[more, &leaf, &authority].concat())
}

fn make(dir: &Dir, file: &str, more: &[&str]) -> Result<()> {
    let mut openssl = Command::new(program("openssl", "openssl")?);
    openssl.args(["req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"]);
    openssl.args(["-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    let (key, certificate) = (format!("{file}.key"), format!("{file}.crt"));
    openssl
        .args(more)
        .args(["-keyout", &key, "-out", &certificate]);
    let output = openssl.current_dir(dir.path()).output();
    let output = output.map_err(Failure::to("run openssl"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("openssl makes no {file}.crt: {said}")))
}
