//! HTTP to the replicas: one request and its answer, over connections that are kept.

use std::error::Error as StdError;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use fencelock_core::support::Mutex;
use fencelock_wire::{KEY, REPLICA};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use crate::config::Config;

type Body = Full<Bytes>;

/// A connection is closed before the service closes it, which does so after a minute.
const IDLE: Duration = Duration::from_secs(30);

/// How long an answer may take to be read that came in time, while this process was stopped.
pub(crate) const UNREAD: Duration = Duration::from_millis(50);

/// More than the longest answer: a page of locks with their queues.
const MOST_BYTES: usize = 64 << 20;

/// A request to the service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a Method,
    /// Path and query.
    pub(crate) path: &'a str,
    pub(crate) key: Option<&'a HeaderValue>,
    /// The replica that is meant, where claims belong to one.
    pub(crate) replica: Option<&'a HeaderValue>,
    /// JSON.
    pub(crate) body: Option<&'a Bytes>,
}

impl<'a> Ask<'a> {
    pub(crate) const fn get(path: &'a str) -> Self {
        Self {
            method: &Method::GET,
            path,
            key: None,
            replica: None,
            body: None,
        }
    }
}

/// An answer, of whatever status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Which replica it says that it is.
    pub(crate) replica: Option<String>,
    pub(crate) body: Bytes,
}

/// No answer.
#[derive(Clone, Debug)]
pub(crate) enum NoAnswer {
    /// The request was not sent.
    NotSent(String),
    /// It may have taken effect, or may do so later.
    InDoubt(String),
    /// This client was closed.
    Closed,
}

/// With or without TLS.
#[derive(Clone, Debug)]
enum HttpClient {
    Plain(Client<HttpConnector, Body>),
    #[cfg(feature = "tls")]
    Encrypted(Client<hyper_rustls::HttpsConnector<HttpConnector>, Body>),
}

impl HttpClient {
    fn new(config: &Config) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(config.connect_timeout));
        let mut builder = Client::builder(TokioExecutor::new());
        let builder = builder
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new());
        #[cfg(feature = "tls")]
        if let Some(tls) = &config.tls {
            let connector = hyper_rustls::HttpsConnectorBuilder::new()
                .with_tls_config(tls.config.clone())
                .https_only()
                .enable_http1()
                .wrap_connector(connector);
            return Self::Encrypted(builder.build(connector));
        }
        Self::Plain(builder.build(connector))
    }

    fn request(&self, request: Request<Body>) -> ResponseFuture {
        match self {
            Self::Plain(client) => client.request(request),
            #[cfg(feature = "tls")]
            Self::Encrypted(client) => client.request(request),
        }
    }
}

/// The connections to all replicas.
#[derive(Debug)]
pub(crate) struct Connections {
    client: Mutex<Option<HttpClient>>,
    scheme: &'static str,
    bearer: Option<HeaderValue>,
}

impl Connections {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            client: Mutex::new(Some(HttpClient::new(config))),
            scheme: match config.tls {
                Some(_) => "https",
                None => "http",
            },
            bearer: config.bearer.clone(),
        }
    }

    /// Ends the idle connections. Those in use end with their request.
    pub(crate) fn close(&self) {
        *self.client.lock() = None;
    }

    /// Sends a request to a replica, and reads the whole answer.
    pub(crate) async fn ask(
        &self,
        replica: &str,
        ask: Ask<'_>,
        limit: Duration,
    ) -> Result<Answer, NoAnswer> {
        let answer = async {
            let response = self.send(replica, ask, "application/json").await?;
            let replica = replica_of(&response);
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MOST_BYTES).collect().await;
            let body = body.map_err(|error| NoAnswer::InDoubt(full_text(&*error)))?;
            Ok(Answer {
                status: head.status,
                replica,
                body: body.to_bytes(),
            })
        };
        let mut answer = pin!(answer);
        if let Ok(answer) = timeout(limit, answer.as_mut()).await {
            return answer;
        }
        let late = |_| Err(NoAnswer::InDoubt(format!("no answer within {limit:?}")));
        timeout(UNREAD, answer).await.unwrap_or_else(late)
    }

    /// Sends a request whose answer is read as it comes.
    pub(crate) async fn stream(
        &self,
        replica: &str,
        ask: Ask<'_>,
        limit: Duration,
        accept: &'static str,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let late = |_| Err(NoAnswer::InDoubt(format!("no answer within {limit:?}")));
        let sent = self.send(replica, ask, accept);
        timeout(limit, sent).await.unwrap_or_else(late)
    }

    async fn send(
        &self,
        replica: &str,
        ask: Ask<'_>,
        accept: &'static str,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let client = self.client.lock().clone().ok_or(NoAnswer::Closed)?;
        let uri = format!("{}://{replica}{}", self.scheme, ask.path);
        let mut request = Request::builder().method(ask.method).uri(uri);
        request = request.header(ACCEPT, accept);
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer);
        }
        if let Some(key) = ask.key {
            request = request.header(HeaderName::from_static(KEY), key);
        }
        if let Some(replica) = ask.replica {
            request = request.header(HeaderName::from_static(REPLICA), replica);
        }
        if ask.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(ask.body.cloned().unwrap_or_default());
        let request = request.body(body);
        let request = request.map_err(|error| NoAnswer::NotSent(error.to_string()))?;
        client.request(request).await.map_err(|error| {
            let text = full_text(&error);
            match error.is_connect() {
                true => NoAnswer::NotSent(text),
                false => NoAnswer::InDoubt(text),
            }
        })
    }
}

/// Which replica an answer says that it is from.
pub(crate) fn replica_of(response: &Response<Incoming>) -> Option<String> {
    let id = response.headers().get(REPLICA)?;
    id.to_str().ok().map(str::to_owned)
}

/// An error with its causes, which say more than it does.
fn full_text(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
