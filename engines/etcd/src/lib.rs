//! Locks in etcd: keys under one session lease, in line by revision.
