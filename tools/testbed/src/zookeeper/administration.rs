//! What an administrator does with a ZooKeeper server: four-letter words, and nodes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::server::{START, ZooKeeper};
use crate::failure::{Failure, Result};

/// How many times to try again when nodes change during their deletion.
const TRIES: u32 = 100;

impl ZooKeeper {
    /// The answer to a four-letter word, such as `srvr` or `wchs`.
    ///
    /// # Errors
    /// If it does not answer within two seconds.
    pub fn word(&self, word: &str) -> Result<String> {
        let ask = || {
            let address = SocketAddr::from(([127, 0, 0, 1], self.port()));
            let limit = Duration::from_secs(2);
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(word.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        };
        ask().map_err(Failure::to(format!(
            "ask the server on port {} for {word}",
            self.port()
        )))
    }

    /// Creates a persistent node. With `auth` (`user:password`), only that user has access.
    ///
    /// # Errors
    /// If the server does not answer, or the node exists.
    pub fn make_root(&self, path: &str, auth: Option<&str>) -> Result<()> {
        let path = path.to_owned();
        let owned = auth.is_some();
        self.administer(auth, async move |client| {
            let acls = match owned {
                true => Acls::creator_all(),
                false => Acls::anyone_all(),
            };
            let options = CreateMode::Persistent.with_acls(acls);
            client.create(&path, b"", &options).await.map(drop)
        })
    }

    /// The number of nodes below `path`; 0 if there is no such node.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn count_below(&self, path: &str, auth: Option<&str>) -> Result<u64> {
        let path = path.to_owned();
        self.administer(auth, async move |client| {
            match client.count_descendants_number(&path).await {
                Ok(count) => Ok(count as u64),
                Err(Error::NoNode) => Ok(0),
                Err(error) => Err(error),
            }
        })
    }

    /// How many children of `path` have names with this prefix.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn count_children(&self, path: &str, begin: &str, auth: Option<&str>) -> Result<u64> {
        let (path, begin) = (path.to_owned(), begin.to_owned());
        self.administer(auth, async move |client| {
            match client.list_children(&path).await {
                Ok(children) => {
                    let found = children.iter().filter(|child| child.starts_with(&begin));
                    Ok(found.count() as u64)
                }
                Err(Error::NoNode) => Ok(0),
                Err(error) => Err(error),
            }
        })
    }

    /// The names of the children of `path`, sorted.
    ///
    /// # Errors
    /// If the server does not answer, or there is no such node.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        let path = path.to_owned();
        self.administer(None, async move |client| {
            let mut children = client.list_children(&path).await?;
            children.sort_unstable();
            Ok(children)
        })
    }

    /// Deletes the node `path`, which has no children.
    ///
    /// # Errors
    /// If the server does not answer, or there is no such node.
    pub fn delete(&self, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.administer(None, async move |client| client.delete(&path, None).await)
    }

    /// Deletes the children of `path` and their children, as an administrator might. Each child is deleted with its own
    /// children at once, so that no claim of a queue is granted a lock and then deleted, too.
    ///
    /// # Errors
    /// If the server does not answer, or other clients change the nodes all the time.
    pub fn erase_below(&self, path: &str, auth: Option<&str>) -> Result<()> {
        let path = path.to_owned();
        self.administer(auth, async move |client| {
            for name in client.list_children(&path).await? {
                erase(client, &format!("{path}/{name}")).await?;
            }
            Ok(())
        })
    }

    /// Runs `work` with its own client.
    fn administer<T: Send + 'static>(
        &self,
        auth: Option<&str>,
        work: impl AsyncFnOnce(&Client) -> std::result::Result<T, Error> + Send + 'static,
    ) -> Result<T> {
        let failed = format!("administer the server on port {}", self.port());
        let address = format!("127.0.0.1:{}", self.port());
        let auth = auth.map(str::to_owned);
        let working = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let work = async {
                let mut connector =
                    Client::connector().with_session_timeout(Duration::from_secs(10));
                if let Some(auth) = auth {
                    connector = connector.with_auth("digest", auth.as_bytes());
                }
                let client = connector.connect(&address).await?;
                work(&client).await
            };
            let worked = runtime.block_on(async { tokio::time::timeout(START, work).await });
            let worked = worked.map_err(|error| error.to_string())?;
            worked.map_err(|error: Error| error.to_string())
        };
        // On its own thread, since the caller's thread may belong to an async runtime, which must not be blocked.
        let thread = std::thread::Builder::new().name("zookeeper administrator".into());
        let thread = thread.spawn(working).map_err(Failure::to(&failed))?;
        let worked = thread.join();
        let worked = worked.map_err(|_| Failure::new(format!("cannot {failed}: it panicked")))?;
        worked.map_err(Failure::to(&failed))
    }
}

/// Deletes a node with its children.
async fn erase(client: &Client, name: &str) -> std::result::Result<(), Error> {
    let mut tries = 0;
    loop {
        let children = match client.list_children(name).await {
            // The server has deleted the node in the meantime, as it does with empty containers.
            Err(Error::NoNode) => return Ok(()),
            listed => listed?,
        };
        let mut all = client.new_multi_writer();
        for child in children {
            all.add_delete(&format!("{name}/{child}"), None)?;
        }
        all.add_delete(name, None)?;
        match all.commit().await {
            Ok(_) => return Ok(()),
            // Another client has created or deleted a child meanwhile.
            Err(error) if tries == TRIES => return Err(error.into()),
            Err(_) => tries += 1,
        }
    }
}
