//! HTTP to the replicas: one request and its answer, over connections that are kept open.

use std::error::Error as StdError;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fencelock_wire::{KEY, REPLICA};
use futures_util::FutureExt;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tower_service::Service as _;

use crate::config::Config;
use crate::exchange::{Body, Connection, Exchange, Lines};
use crate::idle::Idle;

pub(crate) const JSON: &str = "application/json";

/// At least as many headers as a request has, including those that hyper adds.
const HEADERS: usize = 8;

/// How long reading an answer may take that came in time while this process was stopped.
pub(crate) const UNREAD: Duration = Duration::from_millis(50);

/// More bytes than the longest answer has, which is a page of locks with their queues.
const MOST_BYTES: usize = 64 << 20;

/// A request to the service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a Method,
    /// Path and query.
    pub(crate) path: &'a str,
    pub(crate) key: Option<&'a HeaderValue>,
    /// The id of the replica, where claims belong to one.
    pub(crate) replica: Option<&'a HeaderValue>,
    /// JSON.
    pub(crate) body: Option<&'a Bytes>,
    /// The media type of the answer.
    pub(crate) accept: &'static str,
}

impl<'a> Ask<'a> {
    pub(crate) const fn get(path: &'a str) -> Self {
        Self {
            method: &Method::GET,
            path,
            key: None,
            replica: None,
            body: None,
            accept: JSON,
        }
    }
}

/// An answer with any status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The id of the replica, as the answer says.
    pub(crate) replica: Option<HeaderValue>,
    pub(crate) body: Bytes,
    /// The lines that follow, if the body is the first line of several.
    pub(crate) rest: Option<Lines>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum NoAnswer {
    /// The request was not sent.
    NotSent(String),
    /// The request may have taken effect, or may take effect later.
    InDoubt(String),
    /// This client was closed.
    Closed,
}

/// Opens connections, with or without TLS.
#[derive(Clone, Debug)]
enum Connector {
    Plain(HttpConnector),
    #[cfg(feature = "tls")]
    Encrypted(hyper_rustls::HttpsConnector<HttpConnector>),
}

impl Connector {
    fn new(config: &Config) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(config.connect_timeout));
        #[cfg(feature = "tls")]
        if let Some(tls) = &config.tls {
            let connector = hyper_rustls::HttpsConnectorBuilder::new()
                .with_tls_config(tls.config.clone())
                .https_only()
                .enable_http1()
                .wrap_connector(connector);
            return Self::Encrypted(connector);
        }
        Self::Plain(connector)
    }

    /// A new connection to the host and port of a URL.
    async fn open(&self, url: Uri) -> Result<Connection, NoAnswer> {
        let opened = match self.clone() {
            Self::Plain(mut connector) => {
                let stream = connector.call(url).await;
                let stream = stream.map_err(|error| NoAnswer::NotSent(full_text(&error)))?;
                Connection::new(stream).await
            }
            #[cfg(feature = "tls")]
            Self::Encrypted(mut connector) => {
                let stream = connector.call(url).await;
                let stream = stream.map_err(|error| NoAnswer::NotSent(full_text(&*error)))?;
                Connection::new(stream).await
            }
        };
        opened.map_err(|error| NoAnswer::NotSent(full_text(&error)))
    }
}

/// The connections to all replicas.
pub(crate) struct Connections {
    connector: Connector,
    idle: Arc<Idle>,
    scheme: &'static str,
    bearer: Option<HeaderValue>,
}

impl Connections {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            connector: Connector::new(config),
            idle: Arc::default(),
            scheme: match config.tls {
                Some(_) => "https",
                None => "http",
            },
            bearer: config.bearer.clone(),
        }
    }

    /// Closes the idle connections. Connections in use are closed after their request.
    pub(crate) fn close(&self) {
        self.idle.close();
    }

    /// Sends a request to a replica, and reads the whole answer.
    pub(crate) async fn ask(
        &self,
        replica: &str,
        ask: Ask<'_>,
        limit: Duration,
    ) -> Result<Answer, NoAnswer> {
        let answer = async {
            let exchange = self.send(replica, ask).await?;
            match exchange.is_in_lines() {
                true => read_first(exchange).await,
                false => self.read(replica, exchange).await,
            }
        };
        let mut answer = pin!(answer);
        if let Ok(answer) = timeout(limit, answer.as_mut()).await {
            return answer;
        }
        timeout(UNREAD, answer)
            .await
            .unwrap_or_else(|_| late(limit))
    }

    /// Sends a request whose answer is read as it comes.
    pub(crate) async fn begin(
        &self,
        replica: &str,
        ask: Ask<'_>,
        limit: Duration,
    ) -> Result<Exchange, NoAnswer> {
        let sent = self.send(replica, ask);
        timeout(limit, sent).await.unwrap_or_else(|_| late(limit))
    }

    /// Reads the rest of an answer.
    pub(crate) async fn read(
        &self,
        replica: &str,
        mut exchange: Exchange,
    ) -> Result<Answer, NoAnswer> {
        let (status, id) = (exchange.status(), exchange.replica());
        // Usually all of it comes at once.
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        while let Some(data) = exchange.more().await {
            let data = data.map_err(|error| NoAnswer::InDoubt(full_text(&error)))?;
            if first.len() + rest.len() + data.len() > MOST_BYTES {
                let why = format!("its answer is longer than {MOST_BYTES} bytes");
                return Err(NoAnswer::InDoubt(why));
            }
            match first.is_empty() {
                true => first = data,
                false => rest.extend_from_slice(&data),
            }
        }
        self.keep(replica, exchange);
        let body = match rest.is_empty() {
            true => first,
            false => [first, rest.freeze()].concat().into(),
        };
        Ok(Answer {
            status,
            replica: id,
            body,
            rest: None,
        })
    }

    /// Keeps a connection open whose answer was read completely.
    pub(crate) fn keep(&self, replica: &str, exchange: Exchange) {
        self.idle.put(replica, exchange.end());
    }

    /// Keeps a connection open whose last line was read, if the answer ended with that line.
    pub(crate) fn keep_ended(&self, replica: &str, mut lines: Lines) {
        if let Some(Ok(None)) = lines.next().now_or_never() {
            self.keep(replica, lines.into_exchange());
        }
    }

    async fn send(&self, replica: &str, ask: Ask<'_>) -> Result<Exchange, NoAnswer> {
        let request = self.request(replica, ask);
        let mut request = request.map_err(|error| NoAnswer::NotSent(error.to_string()))?;
        loop {
            let (connection, is_new) = match self.idle.take(replica) {
                Some(connection) => (connection, false),
                None => (self.open(replica).await?, true),
            };
            match connection.send(request).await {
                Ok(exchange) => return Ok(exchange),
                Err(mut failed) => match failed.take_message() {
                    // The connection was closed while it was idle.
                    Some(unsent) if !is_new => request = unsent,
                    Some(_) => return Err(NoAnswer::NotSent(full_text(failed.error()))),
                    None => return Err(NoAnswer::InDoubt(full_text(failed.error()))),
                },
            }
        }
    }

    async fn open(&self, replica: &str) -> Result<Connection, NoAnswer> {
        if self.idle.is_closed() {
            return Err(NoAnswer::Closed);
        }
        let url = Uri::builder()
            .scheme(self.scheme)
            .authority(replica)
            .path_and_query("/");
        let url = url.build();
        let url = url.map_err(|error| NoAnswer::NotSent(error.to_string()))?;
        self.connector.open(url).await
    }

    fn request(&self, replica: &str, ask: Ask<'_>) -> http::Result<Request<Body>> {
        let mut request = Request::new(Body::new(ask.body.cloned().unwrap_or_default()));
        *request.method_mut() = ask.method.clone();
        *request.uri_mut() = ask.path.parse()?;
        let headers = request.headers_mut();
        headers.reserve(HEADERS);
        headers.insert(HOST, HeaderValue::from_str(replica)?);
        headers.insert(ACCEPT, HeaderValue::from_static(ask.accept));
        if let Some(bearer) = &self.bearer {
            headers.insert(AUTHORIZATION, bearer.clone());
        }
        if let Some(key) = ask.key {
            headers.insert(HeaderName::from_static(KEY), key.clone());
        }
        if let Some(replica) = ask.replica {
            headers.insert(HeaderName::from_static(REPLICA), replica.clone());
        }
        if ask.body.is_some() {
            let json = HeaderValue::from_static(JSON);
            headers.insert(CONTENT_TYPE, json);
        }
        Ok(request)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({})", self.scheme)
    }
}

/// Reads the first line of an answer. The rest comes later.
async fn read_first(exchange: Exchange) -> Result<Answer, NoAnswer> {
    let (status, replica) = (exchange.status(), exchange.replica());
    let mut lines = Lines::of(exchange);
    let first = lines.next().await;
    let first = first.map_err(|error| NoAnswer::InDoubt(error.to_string()))?;
    Ok(Answer {
        status,
        replica,
        body: first.unwrap_or_default(),
        rest: Some(lines),
    })
}

fn late<T>(limit: Duration) -> Result<T, NoAnswer> {
    Err(NoAnswer::InDoubt(format!("no answer within {limit:?}")))
}

/// An error with its causes, which say more than the error itself.
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
