//! A store that was not started here. Its servers have no faults; each worker has its own proxies before them.

use std::net::ToSocketAddrs;

use fencelock_testbed::{Failure, Proxy, Result};

/// The schemes whose clients connect only to the hosts in the URL, with their default ports.
const PORTS: &[(&str, u16)] = &[
    ("redis", 6379),
    ("valkey", 6379),
    ("redlock", 6379),
    ("etcd", 2379),
    ("zookeeper", 2181),
    ("mysql", 3306),
    ("mariadb", 3306),
    ("postgres", 5432),
    ("postgresql", 5432),
];

/// A route to the store with a proxy before each host: the URL to use, and the proxies. There are no proxies for
/// clients that learn the servers from other servers (Sentinel, Cluster) or that verify the server's name (TLS).
pub(crate) fn route(url: &str) -> Result<(String, Vec<Proxy>)> {
    let mut proxies = Vec::new();
    let mut hosts = Vec::new();
    let Some(Parts {
        before,
        targets,
        after,
    }) = parts(url)
    else {
        return Ok((url.to_owned(), proxies));
    };
    for (host, port) in targets {
        let what = format!("find {host}:{port}");
        let mut found = (host, port).to_socket_addrs().map_err(Failure::to(&what))?;
        let address = found.next().ok_or_else(|| Failure::new(what))?;
        let proxy = Proxy::to(address)?;
        hosts.push(format!("127.0.0.1:{}", proxy.port()));
        proxies.push(proxy);
    }
    Ok((format!("{before}{}{after}", hosts.join(",")), proxies))
}

/// The parts of a URL before and after its hosts.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'a> {
    before: &'a str,
    targets: Vec<(&'a str, u16)>,
    after: &'a str,
}

fn parts<'a>(url: &'a str) -> Option<Parts<'a>> {
    let (scheme, rest) = url.split_once("://")?;
    let (_, usual) = PORTS.iter().find(|(known, _)| *known == scheme)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    let hosts = authority
        .rsplit_once('@')
        .map_or(authority, |(_, hosts)| hosts);
    let own_credentials = scheme == "redlock" && hosts.len() < authority.len();
    if after.contains("tls-ca=") || own_credentials || hosts.is_empty() {
        return None;
    }
    // To another machine these clients use TLS, and verify the server's name.
    let database = ["mysql", "mariadb", "postgres", "postgresql"].contains(&scheme);
    if database
        && !["tls=off", "sslmode=disable"]
            .iter()
            .any(|off| after.contains(off))
    {
        let local = |host: &str| host.starts_with("127.") || host.starts_with("localhost");
        let asked = ["tls=", "ssl"].iter().any(|word| after.contains(word));
        if asked || !hosts.split(',').all(local) {
            return None;
        }
    }
    let target = |host: &'a str| -> (&'a str, u16) {
        let with_port = host.rsplit_once(':');
        let found = with_port.and_then(|(name, port)| Some((name, port.parse().ok()?)));
        let (name, port) = found.unwrap_or((host, *usual));
        (name.trim_matches(['[', ']']), port)
    };
    Some(Parts {
        before: &url[..url.len() - after.len() - hosts.len()],
        targets: hosts.split(',').map(target).collect(),
        after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_urls() {
        let found = |url: &'static str| {
            let parts = parts(url).unwrap();
            (parts.before, parts.targets, parts.after)
        };
        assert_eq!(
            found("redis://a:b@c:1/2?x=y"),
            ("redis://a:b@", vec![("c", 1)], "/2?x=y")
        );
        assert_eq!(
            found("etcd://a,[::1]:9,[::2]"),
            ("etcd://", vec![("a", 2379), ("::1", 9), ("::2", 2379)], "")
        );
        assert_eq!(
            found("mysql://u@h/d?tls=off"),
            ("mysql://u@", vec![("h", 3306)], "/d?tls=off")
        );
        assert_eq!(
            found("postgres://u@127.0.0.1/d?strategy=advisory"),
            (
                "postgres://u@",
                vec![("127.0.0.1", 5432)],
                "/d?strategy=advisory"
            )
        );
        for other in [
            "sqlite:/x",
            "rediss://a",
            "redis+sentinel://a/m",
            "zookeeper://a?tls-ca=x",
            "redlock://:p@a,:q@b",
            "mysql://u@h/d",
            "postgres://u@localhost/d?sslmode=require",
        ] {
            assert_eq!(parts(other), None, "{other}");
        }
    }
}
