//! Locks in ZooKeeper: ephemeral sequential nodes, each watching the one before it.
