//! The files that a URL names for TLS.

use super::store_url::StoreUrl;
use crate::types::{ConfigPart, Result};

/// The paths in `tls-ca`, `tls-cert` and `tls-key`.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The authority to trust.
    pub ca: Option<String>,
    /// This client's certificate.
    pub cert: Option<String>,
    /// Its key.
    pub key: Option<String>,
}

/// The contents of the files.
#[derive(Default)]
#[non_exhaustive]
pub struct TlsTexts {
    /// The authority to trust.
    pub ca: Option<Vec<u8>>,
    /// This client's certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsFiles {
    /// Takes the three options.
    #[must_use]
    pub fn take(url: &mut StoreUrl) -> Self {
        Self {
            ca: url.take("tls-ca"),
            cert: url.take("tls-cert"),
            key: url.take("tls-key"),
        }
    }

    /// One of the options that is set.
    #[must_use]
    pub fn given(&self) -> Option<&'static str> {
        let options = [
            ("tls-ca", &self.ca),
            ("tls-cert", &self.cert),
            ("tls-key", &self.key),
        ];
        let mut given = options.iter().filter(|(_, file)| file.is_some());
        given.next().map(|(option, _)| *option)
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if one cannot be read, or a certificate and a key do not come together.
    pub fn read(&self, url: &StoreUrl) -> Result<TlsTexts> {
        let read = |option, file: &Option<String>| {
            let text = file
                .as_deref()
                .map(|file| Self::contents(url, option, file));
            text.transpose()
        };
        let ca = read("tls-ca", &self.ca)?;
        let identity = match (read("tls-cert", &self.cert)?, read("tls-key", &self.key)?) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(url.refuse("tls-cert and tls-key belong together; give both")),
        };
        Ok(TlsTexts { ca, identity })
    }

    /// Reads one file.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if that fails.
    pub fn contents(url: &StoreUrl, option: &str, file: &str) -> Result<Vec<u8>> {
        let read = std::fs::read(file);
        read.map_err(|error| {
            let why = format!("the file {file} of {option}: {error}");
            url.refuse_part(ConfigPart::File, why)
        })
    }
}
