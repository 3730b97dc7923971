//! The module `tls` without the cargo feature `tls`: it returns an error.

use std::io;
use std::sync::Arc;

use fencelock_core::{Error, Result};
use tokio::net::TcpStream;

use crate::config::TlsFiles;

/// A type without values: TLS is not available.
#[derive(Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn open(_: &TlsFiles) -> Result<Self> {
        let why = "this build has no TLS; build with the cargo feature tls";
        Err(Error::config_file("section [serve.tls]", why))
    }

    pub(crate) fn reload(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) async fn accept(&self, _: TcpStream) -> io::Result<(TcpStream, Option<Arc<str>>)> {
        match *self {}
    }
}
