//! HTTP/2, written and read by hand, so that a test can also do what no library would do.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::one;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
/// The setting for the maximum number of open streams.
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The error of a stream that was not processed.
const REFUSED_STREAM: u32 = 7;

struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

async fn read(connection: &mut TcpStream) -> Frame {
    let mut head = [0; 9];
    connection.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    connection.read_exact(&mut payload).await.unwrap();
    Frame {
        kind: head[3],
        stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
        payload,
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A request that waits for a change of a lock.
fn watch(stream: u32) -> Vec<u8> {
    // GET and http are in the static table. The path and the authority are not, and are not added to the dynamic one.
    let mut block = vec![0x82, 0x86];
    let path = "/v1/lock?name=a&seen=none&wait_ms=60000";
    for (index, text) in [(0x04, path), (0x01, "localhost")] {
        block.extend([index, u8::try_from(text.len()).unwrap()]);
        block.extend(text.as_bytes());
    }
    // The flags end the headers and the request.
    frame(HEADERS, 0x05, stream, &block)
}

#[tokio::test]
async fn a_connection_has_a_limit_of_open_requests() {
    let at = one().await;
    let mut connection = TcpStream::connect(at.address()).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    // The streams of a client have odd numbers.
    bytes.extend((0..257).flat_map(|count| watch(2 * count + 1)));
    connection.write_all(&bytes).await.unwrap();
    let refused = async {
        let mut announced = None;
        loop {
            let frame = read(&mut connection).await;
            match frame.kind {
                SETTINGS => {
                    let settings = frame.payload.chunks_exact(6);
                    let mut settings = settings.map(|one| {
                        let value = u32::from_be_bytes([one[2], one[3], one[4], one[5]]);
                        (u16::from_be_bytes([one[0], one[1]]), value)
                    });
                    let found = settings.find(|(setting, _)| *setting == MAX_CONCURRENT_STREAMS);
                    announced = announced.or(found);
                }
                RST_STREAM => return (announced, frame),
                kind => assert_ne!(kind, HEADERS, "an answer"),
            }
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
    let (announced, refused) = refused.expect("none is refused");
    assert_eq!(announced, Some((MAX_CONCURRENT_STREAMS, 256)));
    assert_eq!(refused.stream, 2 * 256 + 1);
    assert_eq!(refused.payload, REFUSED_STREAM.to_be_bytes());
}
