//! A service that refuses late holders: axum behind the layer, which reads the header `Fencelock-Sequencer`.
//!
//! `cargo run -p fencelock-fence --features http --example axum_service`

mod story;

use axum::Router;
use axum::routing::put;
use fencelock::Sequencer;
use fencelock_fence::http::FenceLayer;
use story::{Ledger, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The address of the service.
struct Service(String);

impl Ledger for Service {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        let mut stream = TcpStream::connect(&self.0).await?;
        let request = format!(
            "PUT /ledger HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\
             Fencelock-Sequencer: {holder}\r\n\r\n{text}",
            self.0,
            text.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        match answer.starts_with("HTTP/1.1 200 ") {
            true => Ok(()),
            // 412 with a body of application/problem+json.
            false => Err(answer.replace("\r\n", " | ").into()),
        }
    }
}

/// Serves on a free port. Returns the address.
async fn serve() -> Result<String> {
    let write = async |body: String| println!("The service writes: {body}");
    let service = Router::new()
        .route("/ledger", put(write))
        .layer(FenceLayer::for_lock("ledger"));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}

#[tokio::main]
async fn main() -> Result<()> {
    // The successor's process runs the service. The sleeper gets its address.
    let address = match story::place() {
        Ok(address) => address,
        Err(_) => serve().await?,
    };
    story::run(&Service(address.clone()), &address).await
}
