//! A dump that is restored into the running server.

use std::io::Write;
use std::process::{Command, Stdio};

use fencelock_core::{Client, Token};

use super::{open, token_of};

/// Runs a program with this input, and returns its output.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}");
    output.stdout
}

/// Takes the lock. Its token must be above the last one.
pub(crate) async fn above(client: &Client, last: &mut Token, what: &str) {
    let token = token_of(client, "a").await;
    assert!(token > *last, "{what}: {token} after {last}");
    *last = token;
}

/// Draws many tokens with one client, restores the dump, and draws with all of them.
pub(crate) async fn tokens_go_on_above(
    url: &str,
    (one, two): (&Client, &Client),
    last: &mut Token,
    restore: impl Fn(),
) {
    for _ in 0..40 {
        above(one, last, "before the dump is restored").await;
    }
    restore();
    // First the client that has seen none of the latest tokens, then the client that has seen them, then a new client.
    above(two, last, "an old connection").await;
    above(one, last, "the last holder's connection").await;
    above(two, last, "an old connection").await;
    restore();
    let new = open(url).await.unwrap();
    above(&new, last, "a new connection").await;
    above(two, last, "an old connection").await;
    above(one, last, "an old connection").await;
}
