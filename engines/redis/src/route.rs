//! The connection over which something is written that replicas must have, if grants wait for replicas.

use std::sync::Arc;

use fencelock_core::Result;

use crate::acquire::too_few_replicas;
use crate::connection::Connection;
use crate::node::Node;
use crate::servers::Servers;
use crate::writer::{Use, Writer};

/// The main connection, or a writer if replicas must have what is written.
pub(crate) struct Route {
    pub(crate) node: Arc<Node>,
    pub(crate) main: Arc<Connection>,
    writer: Option<Writer>,
}

impl Route {
    /// To this node, of which `main` is the current connection.
    pub(crate) async fn over(
        servers: &Servers,
        (node, main): (Arc<Node>, Arc<Connection>),
    ) -> Result<Self> {
        let mut writer = node.writer(Use::Renewal, &servers.state, &main).await?;
        servers.check_master(&node)?;
        if let Some(writer) = &mut writer {
            writer.sends();
        }
        Ok(Self { node, main, writer })
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.writer.as_deref().unwrap_or(&self.main)
    }

    /// Notes that every request has its reply. Without this the writer is not used again.
    pub(crate) fn answered(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.answered();
        }
    }

    /// Waits until the wanted number of replicas has what was written.
    pub(crate) async fn replicate(&mut self, servers: &Servers) -> Result<()> {
        let config = &servers.state.config;
        let asked = config.replicas;
        if asked == 0 {
            return Ok(());
        }
        let timeout = config.response_timeout / 2;
        let have = self.connection().replicated(asked, timeout).await;
        let failed = |error| servers.state.failed("waiting for replicas", None, error);
        let have = have.map_err(failed)?;
        self.answered();
        if have >= asked {
            return Ok(());
        }
        Err(too_few_replicas(&config.store, have, asked, timeout))
    }
}
