//! A service that refuses who is late: axum behind the layer, and the story of a holder that slept.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::put;
use fencelock_core::{Client, Memory, Sequencer};
use fencelock_fence::http::FenceLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let write = async |_body: String| "written\n";
    let service = Router::new()
        .route("/ledger", put(write))
        .layer(FenceLayer::for_lock("ledger"));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move { axum::serve(listener, service).await });

    let store = Memory::new();
    let sleeper = Client::new(Arc::new(store.another()))?;
    let successor = Client::new(Arc::new(store))?;
    let asleep = sleeper.lock("ledger").ttl(Duration::from_millis(500));
    let asleep = asleep.renew(false).await?;
    let early = asleep.sequencer().await?;
    // Granted once the sleeper's lease is over.
    let next = successor.lock("ledger").await?;
    assert!(
        send(&address, &next.sequencer().await?)
            .await?
            .contains(" 200 ")
    );
    let refusal = send(&address, &early).await?;
    println!("{refusal}");
    assert!(refusal.contains(" 412 ") && refusal.contains("application/problem+json"));
    assert!(refusal.contains(&format!("\"won\":{}", next.token())));
    Ok(())
}

async fn send(address: &str, sequencer: &Sequencer) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "PUT /ledger HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 2\r\n\
         Fencelock-Sequencer: {sequencer}\r\n\r\n90"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
