//! Files, replicas of files, and a service behind HTTP.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use fencelock::fence::{FenceError, Highest, Quorum, Replica, Stale};
use fencelock::{Sequencer, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Resource;

/// A directory with a file for each lock, and one file of marks.
#[derive(Clone)]
pub(crate) struct InFile(pub(crate) PathBuf);

impl InFile {
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name.replace('/', "_"))
    }

    fn marks(&self) -> PathBuf {
        self.0.join("marks")
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }
}

#[async_trait]
impl Resource for InFile {
    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        // Opened for each write, since several processes write here.
        let fence = Highest::open(self.marks())?;
        let path = self.file(sequencer.name.as_str());
        fence.write(sequencer, || {
            let mut file = OpenOptions::new().create(true).append(true).open(path);
            write!(file.as_mut().unwrap(), "{text};").unwrap();
        })
    }

    async fn read(&self, name: &str) -> String {
        last(&self.text(name))
    }
}

/// The last write to an append-only file.
fn last(text: &str) -> String {
    let parts = text.trim_end_matches(';').rsplit(';');
    parts.map(str::to_owned).next().unwrap_or_default()
}

#[async_trait]
impl Replica<String> for InFile {
    async fn mark(&self, sequencer: &Sequencer) -> Result<(), FenceError> {
        Highest::open(self.marks())?.mark(sequencer)
    }

    async fn write(&self, sequencer: &Sequencer, text: &String) -> Result<(), FenceError> {
        Resource::write(self, sequencer, text).await
    }
}

/// Three replicas, one of which is always down.
pub(crate) struct ThreeFiles(Quorum<InFile>, PathBuf);

impl ThreeFiles {
    pub(crate) fn new(at: &str) -> Self {
        let replica = |part: &str| {
            let path = Path::new(at).join(part);
            fs::create_dir_all(&path).unwrap();
            InFile(path)
        };
        let replicas = [replica("a"), InFile("/nowhere".into()), replica("c")];
        Self(Quorum::new(replicas), at.into())
    }
}

#[async_trait]
impl Resource for ThreeFiles {
    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        self.0.write(sequencer, text.to_owned()).await
    }

    async fn read(&self, name: &str) -> String {
        let text = |part: &str| last(&InFile(self.1.join(part)).text(name));
        assert_eq!(text("a"), text("c"));
        text("a")
    }
}

/// A service at an address, with hand-written requests.
pub(crate) struct Http(pub(crate) String);

impl Http {
    async fn ask(&self, method: &str, name: &str, header: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.0).await.unwrap();
        let request = format!(
            "{method} /{name} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{header}Content-Length: {}\r\n\r\n{body}",
            self.0,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        (status, body)
    }
}

#[async_trait]
impl Resource for Http {
    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError> {
        let header = format!("Fencelock-Sequencer: {sequencer}\r\n");
        let name = sequencer.name.as_str();
        let (status, body) = self.ask("PUT", name, &header, text).await;
        if status == 200 {
            return Ok(());
        }
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, &problem["type"]),
            (412, &"urn:fencelock:stale".into())
        );
        let (late, won) = (sequencer.clone(), Token(problem["won"].as_u64().unwrap()));
        Err(Box::new(Stale::new(late, won)).into())
    }

    async fn read(&self, name: &str) -> String {
        self.ask("GET", name, "", "").await.1
    }
}
