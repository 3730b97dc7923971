//! Requests that arrive after later ones of the same claim: they neither shorten nor revive nor end its present grant.

use std::time::Instant;

use fencelock_core::Token;
use fencelock_core::engine::{Renewal, Withdrawn};
use fencelock_testbed::Redis as Server;

use crate::support::{Store, calls, ms, open, server};

#[tokio::test]
async fn a_late_place_does_not_shorten_a_lease() {
    let server = server();
    let (store, late) = (open(&server.url()).await, open(&server.url()).await);
    for claim in [
        store.claim("script"),
        store.plain("plain"),
        store.shared("shared"),
        store.permit("permit", 2),
    ] {
        let token = store.held(&claim).await.tokens.first;
        store.renew(&claim, token).await;
        let short = claim.clone().ttl(ms(2000));
        let again = late.held(&short).await;
        assert_eq!(again.tokens.first, token, "{}", claim.name);
        assert_eq!(again.lease, ms(2000));
        let left = Store::pttl(&server, claim.name.as_str());
        assert!(left > 20_000, "{}: {left} ms are left", claim.name);
        // A longer lease takes effect.
        let longer = claim.clone().ttl(ms(60_000));
        late.held(&longer).await;
        assert!(Store::pttl(&server, claim.name.as_str()) > 50_000);
    }
    let claim = store.plain("unrecorded");
    store.held(&claim).await;
    let short = claim.ttl(ms(2000));
    late.held(&short).await;
    assert!(Store::pttl(&server, "unrecorded") > 20_000);
}

#[tokio::test]
async fn a_downgrade_does_not_shorten_a_lease() {
    let server = server();
    let store = open(&server.url()).await;
    let claim = store.claim("d");
    store.held(&claim).await;
    let reader = claim.mode(fencelock_core::Mode::Shared).ttl(ms(2000));
    store.held(&reader).await;
    assert!(Store::pttl(&server, "d") > 20_000);
}

#[tokio::test]
async fn a_renewal_with_the_token_of_an_earlier_grant_is_lost() {
    let server = server();
    let store = open(&server.url()).await;
    for claim in [store.claim("alone"), store.shared("shared")] {
        let before = store.held(&claim).await.tokens.first;
        assert_eq!(store.release(&claim).await, Withdrawn::Released);
        let short = claim.clone().ttl(ms(5000));
        let token = store.held(&short).await.tokens.first;
        store.lost(&claim, before).await;
        let left = Store::pttl(&server, claim.name.as_str());
        assert!(left <= 5000, "{}: {left} ms are left", claim.name);
        store.kept(&claim, token).await;
    }
}

#[tokio::test]
async fn a_renewal_names_a_token_of_its_range_and_the_last_one_stays() {
    let server = server();
    let store = open(&server.url()).await;
    let claim = store.claim("range").reserve(8);
    let tokens = store.held(&claim).await.tokens;
    assert_eq!(tokens.count, 8);
    let at = |offset: u64| Token(tokens.first.get() + offset);
    let kept = |renewed: Renewal| matches!(renewed, Renewal::Kept { .. });
    let shown = async || store.look(&claim.name).await.token();
    for offset in [0, 3, 7] {
        assert!(kept(store.renew(&claim, at(offset)).await));
        assert_eq!(shown().await, Some(at(offset)));
    }
    // This renewal stands for one that was sent before the last one.
    assert!(kept(store.renew(&claim, at(3)).await));
    assert_eq!(shown().await, Some(at(7)));
    store.lost(&claim, at(8)).await;
    store.lost(&claim, Token(tokens.first.get() - 1)).await;
    // A grant of the fast path has no stored token. The first renewal writes it.
    let claim = store.plain("unrecorded");
    let token = store.held(&claim).await.tokens.first;
    assert!(kept(store.renew(&claim, token).await));
    store.lost(&claim, Token(token.get() + 1)).await;
}

/// The channel of a claim's process, from the stored value.
fn channel(server: &Server, stored: &[&str]) -> String {
    let stored: String = server.command(stored).unwrap();
    let mut channel = stored.split(':').rev().skip(1);
    format!("fencelock:{}", channel.next().unwrap())
}

#[tokio::test]
async fn a_late_give_back_does_not_end_the_next_grant() {
    let server = server();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    for (holder, waiter) in [
        (other.claim("alone"), store.claim("alone")),
        (other.claim("shared"), store.shared("shared")),
    ] {
        let name = waiter.name.to_string();
        let before = other.held(&holder).await.tokens.first;
        let place = store.waits(&waiter).await;
        other.release(&holder).await;
        // The lock is handed over, and the grant is not confirmed yet.
        let token = store.granted(&waiter, &place).await.tokens.first;
        let stored = match holder.name.as_str() {
            "alone" => vec!["GET", "alone"],
            _ => vec!["HGET", "{shared}:fencelock:line:readers:who"],
        };
        let id = waiter.id.to_string();
        let stored = [stored, vec![id.as_str()]].concat();
        let words = if name == "alone" { 2 } else { 3 };
        let channel = channel(&server, &stored[..words]);
        // A late message about an earlier grant of the claim, which no longer waits here.
        let scripts = || calls(&server, "evalsha") + calls(&server, "eval");
        let ran = scripts();
        let message = format!("g{id}:{before}:1:{name}");
        let heard: i64 = server.command(&["PUBLISH", &channel, &message]).unwrap();
        assert_eq!(heard, 1);
        let begin = Instant::now();
        while scripts() == ran {
            assert!(begin.elapsed() < ms(10_000), "nothing is given back");
            tokio::time::sleep(ms(2)).await;
        }
        store.kept(&waiter, token).await;
        store.release(&waiter).await;
    }
}
