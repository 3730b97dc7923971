//! The files that a URL names for TLS.

/// The files of `tls-ca`, `tls-cert` and `tls-key`.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}
