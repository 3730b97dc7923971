//! The command as its users see it: real processes, real stores, a real terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "redis")]
mod cluster;
mod codes;
mod config;
mod death;
mod docs;
mod doctor;
#[cfg(feature = "etcd")]
mod etcd;
mod exit_codes;
mod face;
mod fixture;
mod hold;
mod house;
#[cfg(feature = "redis")]
mod if_away;
mod inputs;
mod inspect;
#[cfg(feature = "redis")]
mod late_store;
mod migrate;
mod migrate_live;
#[cfg(feature = "redis")]
mod migrate_servers;
#[cfg(feature = "mysql")]
mod mysql;
mod nested;
mod other_user;
mod passwords;
#[cfg(feature = "postgres")]
mod postgres;
mod readme;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redlock;
mod run;
#[cfg(feature = "redis")]
mod sentinel;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod serve_reload;
#[cfg(feature = "serve")]
mod service;
#[cfg(feature = "serve")]
mod service_manager;
mod shards;
mod take;
mod terminal;
#[cfg(all(
    feature = "redis",
    feature = "mysql",
    feature = "postgres",
    feature = "etcd",
    feature = "serve",
    feature = "http",
    feature = "tls",
    feature = "zookeeper"
))]
mod wrong_server;
#[cfg(feature = "zookeeper")]
mod zookeeper;
