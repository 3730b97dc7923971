//! The part of HTTP that the servers under test need.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::failure::{Failure, Result};

const PATIENCE: Duration = Duration::from_secs(5);

/// The body of a GET request to a port of 127.0.0.1.
pub(crate) fn get(port: u16, path: &str) -> Result<String> {
    ask(port, &format!("GET {path} HTTP/1.0\r\n\r\n"), path)
}

/// The answer to a POST request, both in JSON.
pub(crate) fn post(port: u16, path: &str, token: Option<&str>, body: &Value) -> Result<Value> {
    let body = body.to_string();
    let token = token.map(|token| format!("Authorization: {token}\r\n"));
    let request = format!(
        "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{body}",
        token.unwrap_or_default(),
        body.len()
    );
    let answer = ask(port, &request, path)?;
    serde_json::from_str(&answer).map_err(Failure::to(format!("understand {answer:?}")))
}

fn ask(port: u16, request: &str, path: &str) -> Result<String> {
    let what = || format!("ask port {port} for {path}");
    let exchange = || -> std::io::Result<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(Failure::to(what()))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    match status {
        "200" => Ok(body.to_owned()),
        _ => Err(Failure::to(what())(format!("it answers {status}: {body}"))),
    }
}
