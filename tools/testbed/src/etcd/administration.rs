//! What an administrator does with an etcd: users, keys, leases, metrics.

use serde_json::{Value, json};

use super::server::Etcd;
use crate::failure::{Failure, Result};
use crate::http;

/// The administrator, if there are users.
const ROOT: (&str, &str) = ("root", "root-of-the-testbed");

impl Etcd {
    /// Deletes every key, as an administrator might.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn erase(&self) -> Result<()> {
        let all = json!({"key": base64(b"\0"), "range_end": base64(b"\0")});
        self.call("kv/deleterange", &all).map(drop)
    }

    /// The keys that begin with `prefix`, which is not empty.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn keys(&self, prefix: &str) -> Result<u64> {
        let (key, range_end) = range_of(prefix);
        let range = json!({"key": key, "range_end": range_end, "count_only": true});
        let answer = self.call("kv/range", &range)?;
        // The server omits a zero, and sends numbers of 64 bits as text.
        let count = answer["count"].as_str().unwrap_or("0");
        count.parse().map_err(Failure::to("count keys"))
    }

    /// The keys that begin with `prefix`, in base64.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn encoded_keys(&self, prefix: &str) -> Result<Vec<String>> {
        let (key, range_end) = range_of(prefix);
        let range = json!({"key": key, "range_end": range_end, "keys_only": true});
        let answer = self.call("kv/range", &range)?;
        let kvs = answer["kvs"].as_array().cloned().unwrap_or_default();
        let keys = kvs.iter().filter_map(|kv| kv["key"].as_str());
        Ok(keys.map(str::to_owned).collect())
    }

    /// Makes the cluster forget its history, as an administrator might.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn compact(&self) -> Result<()> {
        let answer = self.call("kv/range", &json!({ "key": base64(b"any") }))?;
        let revision = &answer["header"]["revision"];
        let compact = json!({ "revision": revision, "physical": true });
        self.call("kv/compaction", &compact).map(drop)
    }

    /// Ends a lease, as an administrator might.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn revoke(&self, lease: &str) -> Result<()> {
        self.call("lease/revoke", &json!({"ID": lease})).map(drop)
    }

    /// All leases.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn leases(&self) -> Result<Vec<String>> {
        let answer = self.call("lease/leases", &json!({}))?;
        let leases = answer["leases"].as_array().cloned().unwrap_or_default();
        let ids = leases.iter().filter_map(|lease| lease["ID"].as_str());
        Ok(ids.map(str::to_owned).collect())
    }

    /// The member that leads.
    ///
    /// # Errors
    /// If no member leads.
    pub fn leader(&self) -> Result<usize> {
        let leader = (0..self.size()).find(|member| self.leads(*member));
        leader.ok_or_else(|| Failure::new("no member of the cluster leads"))
    }

    /// Whether a member believes that it leads.
    #[must_use]
    pub fn leads(&self, member: usize) -> bool {
        let metrics = self.metrics(member).unwrap_or_default();
        metrics.contains("\netcd_server_is_leader 1\n")
    }

    /// A counter of a member's `/metrics`, summed over its labels that contain `label`.
    ///
    /// # Errors
    /// If the member does not answer.
    pub fn counter(&self, member: usize, name: &str, label: &str) -> Result<u64> {
        let metrics = self.metrics(member)?;
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(label));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        Ok(values.sum::<f64>() as u64)
    }

    fn metrics(&self, member: usize) -> Result<String> {
        http::get(self.members[member].metrics.number(), "/metrics")
    }

    /// Makes the user, its role, and the user root.
    pub(super) fn make_user(&self) -> Result<()> {
        let Some((name, password)) = &self.user else {
            return Ok(());
        };
        let (root, root_password) = ROOT;
        let call = |path: &str, body: Value| self.call_without_user(path, &body);
        call("auth/role/add", json!({"name": "locks"}))?;
        for prefix in &self.rights {
            let (key, range_end) = range_of(prefix);
            let right = json!({"permType": "READWRITE", "key": key, "range_end": range_end});
            call("auth/role/grant", json!({"name": "locks", "perm": right}))?;
        }
        call(
            "auth/user/add",
            json!({"name": root, "password": root_password}),
        )?;
        call("auth/user/grant", json!({"user": root, "role": "root"}))?;
        call("auth/user/add", json!({"name": name, "password": password}))?;
        call("auth/user/grant", json!({"user": name, "role": "locks"}))?;
        call("auth/enable", json!({}))?;
        Ok(())
    }

    fn call_without_user(&self, path: &str, body: &Value) -> Result<Value> {
        if self.tls {
            return Err(Failure::new("a user and TLS at once are not supported"));
        }
        http::post(self.live_port()?, &format!("/v3/{path}"), None, body)
    }

    /// The client port of a member that runs.
    fn live_port(&self) -> Result<u16> {
        let live = |member: &usize| {
            self.process(*member)
                .as_ref()
                .is_some_and(|p| p.ended().is_none())
        };
        let first = (0..self.size()).find(live);
        let first = first.ok_or_else(|| Failure::new("no member of the cluster runs"))?;
        Ok(self.port(first))
    }

    /// One request as the user root.
    fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let port = self.live_port()?;
        let path = format!("/v3/{path}");
        if self.user.is_none() {
            return http::post(port, &path, None, body);
        }
        let mut token = self.token.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(token) = &*token
            && let Ok(answer) = http::post(port, &path, Some(token), body)
        {
            return Ok(answer);
        }
        let (name, password) = ROOT;
        let who = json!({"name": name, "password": password});
        let answer = http::post(port, "/v3/auth/authenticate", None, &who)?;
        let fresh = answer["token"].as_str().unwrap_or_default().to_owned();
        let answer = http::post(port, &path, Some(&fresh), body);
        *token = Some(fresh);
        answer
    }
}

/// The range of the keys with a prefix: its first key and its end, in base64.
fn range_of(prefix: &str) -> (String, String) {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (base64(prefix.as_bytes()), base64(&end))
}

/// Bytes as the server's JSON encodes them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(match digit <= chunk.len() {
                true => char::from(DIGITS[index as usize]),
                false => '=',
            });
        }
    }
    text
}
