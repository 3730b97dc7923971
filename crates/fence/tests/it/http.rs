//! The fence before an HTTP service.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::Body;
use fencelock_core::{Client, Memory, Sequencer};
use fencelock_fence::http::{FenceLayer, Fenced, HEADER};
use http::{Request, Response, StatusCode};
use serde_json::Value;
use tower_layer::Layer;
use tower_service::Service;

use crate::exclusive;

/// Counts the requests that it handles.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<u32>>);

impl Service<Request<()>> for Counts {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: Request<()>) -> Self::Future {
        *self.0.lock().unwrap() += 1;
        ready(Ok(Response::new(Body::from("written"))))
    }
}

async fn send(
    service: &mut Fenced<Counts>,
    method: &str,
    sequencers: &[&str],
) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri("/ledger");
    for sequencer in sequencers {
        request = request.header(HEADER, *sequencer);
    }
    std::future::poll_fn(|cx| service.poll_ready(cx))
        .await
        .unwrap();
    let response = service.call(request.body(()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    if parts.status == StatusCode::OK {
        return (parts.status, Value::Null);
    }
    assert_eq!(parts.headers["content-type"], "application/problem+json");
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["status"], parts.status.as_u16());
    (parts.status, problem)
}

fn text(token: u64) -> String {
    exclusive(token).to_string()
}

#[tokio::test]
async fn a_late_holder_is_refused_and_the_answer_names_the_winner() {
    let counts = Counts::default();
    let name = exclusive(1).name;
    let mut service = FenceLayer::for_lock(name.as_str()).layer(counts.clone());
    for token in [33, 33, 34] {
        let (status, _) = send(&mut service, "PUT", &[&text(token)]).await;
        assert_eq!(status, StatusCode::OK);
    }
    let (status, problem) = send(&mut service, "PUT", &[&text(33)]).await;
    assert_eq!(status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(problem["type"], "urn:fencelock:stale");
    assert_eq!(
        (&problem["token"], &problem["won"]),
        (&33.into(), &34.into())
    );
    assert_eq!(problem["lock"], name.as_str());
    let two = (text(34), text(35));
    let refused = [
        (vec![], StatusCode::PRECONDITION_REQUIRED),
        (vec!["fl1:x"], StatusCode::BAD_REQUEST),
        (vec![&*two.0, &*two.1], StatusCode::BAD_REQUEST),
        (
            vec!["fl1:x:99:00112233445566778899aabbccddeeff:another"],
            StatusCode::PRECONDITION_FAILED,
        ),
    ];
    for (sequencers, expected) in refused {
        let (status, problem) = send(&mut service, "POST", &sequencers).await;
        assert_eq!(status, expected, "{problem}");
    }
    assert_eq!(*counts.0.lock().unwrap(), 3);
    // Reads need no sequencer, unless that is required. A stale sequencer is always refused.
    assert_eq!(send(&mut service, "GET", &[]).await.0, StatusCode::OK);
    let (status, _) = send(&mut service, "GET", &[&text(33)]).await;
    assert_eq!(status, StatusCode::PRECONDITION_FAILED);
    let mut strict = FenceLayer::for_lock("x").always().layer(Counts::default());
    let (status, _) = send(&mut strict, "GET", &[]).await;
    assert_eq!(status, StatusCode::PRECONDITION_REQUIRED);
    let mut free = FenceLayer::for_lock_of(|_| None).layer(Counts::default());
    assert_eq!(send(&mut free, "PUT", &[]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_store_is_asked_whether_the_grant_is_held() {
    let store = Memory::new();
    let holder = Client::new(Arc::new(store.another())).unwrap();
    let asking = Client::new(Arc::new(store)).unwrap();
    let layer = FenceLayer::for_lock("ledger").ask(asking.clone());
    let mut service = layer.layer(Counts::default());
    let guard = holder.lock("ledger").await.unwrap();
    let sequencer: Sequencer = guard.sequencer().await.unwrap();
    let sent = sequencer.to_string();
    assert_eq!(send(&mut service, "PUT", &[&sent]).await.0, StatusCode::OK);
    guard.release().await.unwrap();
    // No later holder has passed, but this one no longer holds.
    let (status, problem) = send(&mut service, "PUT", &[&sent]).await;
    assert_eq!(status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(problem["type"], "urn:fencelock:not-held");
    // An invented sequencer is refused, and keeps no holder out.
    let mut forged = sequencer;
    forged.token = fencelock_core::Token((1 << 53) - 1);
    let (status, problem) = send(&mut service, "PUT", &[&forged.to_string()]).await;
    assert_eq!(status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(problem["type"], "urn:fencelock:not-held");
    let guard = holder.lock("ledger").await.unwrap();
    let next = guard.sequencer().await.unwrap().to_string();
    assert_eq!(send(&mut service, "PUT", &[&next]).await.0, StatusCode::OK);
    // The superseded holder learns which token won.
    let (_, problem) = send(&mut service, "PUT", &[&sent]).await;
    assert_eq!(problem["type"], "urn:fencelock:stale");
    assert_eq!(problem["won"], guard.token().get());
}

/// While the service handles a request of a holder, it handles no request of another holder.
#[tokio::test]
async fn the_check_and_the_write_are_one_step() {
    #[derive(Clone)]
    struct Slow(Arc<tokio::sync::Semaphore>);
    impl Service<Request<()>> for Slow {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future =
            std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _request: Request<()>) -> Self::Future {
            let gate = Arc::clone(&self.0);
            Box::pin(async move {
                gate.acquire().await.unwrap().forget();
                Ok(Response::new(Body::empty()))
            })
        }
    }
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let layer = FenceLayer::for_lock(exclusive(1).name.as_str());
    let service = layer.layer(Slow(Arc::clone(&gate)));
    let put = |token: u64| {
        let mut service = service.clone();
        let request = Request::put("/").header(HEADER, text(token)).body(());
        tokio::spawn(async move { service.call(request.unwrap()).await.unwrap().status() })
    };
    let early = put(33);
    tokio::task::yield_now().await;
    let late = put(34);
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1);
    assert_eq!(early.await.unwrap(), StatusCode::OK);
    assert!(!late.is_finished());
    gate.add_permits(1);
    assert_eq!(late.await.unwrap(), StatusCode::OK);
    assert_eq!(put(33).await.unwrap(), StatusCode::PRECONDITION_FAILED);
}
