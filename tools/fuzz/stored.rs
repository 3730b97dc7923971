//! The fuzzed parsers of engines. They read the data in a store, which any program may have written. They must not
//! panic. Shared like `targets.rs`.

/// One reader.
pub(crate) type Reader = fn(&[u8]);

/// All of them, by name.
pub(crate) const READERS: [(&str, Reader); 3] = [
    ("redis_stored", redis_stored),
    ("etcd_stored", etcd_stored),
    ("zookeeper_stored", zookeeper_stored),
];

/// The value of a Redis key, its queue, and the message on a channel.
pub(crate) fn redis_stored(bytes: &[u8]) {
    fencelock_redis::read_stored(bytes);
}

/// The value at a key of etcd.
pub(crate) fn etcd_stored(bytes: &[u8]) {
    fencelock_etcd::read_stored(bytes);
}

/// The content of a ZooKeeper node, and its name.
pub(crate) fn zookeeper_stored(bytes: &[u8]) {
    fencelock_zookeeper::read_stored(bytes);
}
