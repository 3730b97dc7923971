//! A visitor of the dashboard: a caller, who may have logged in.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::header::{COOKIE, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use crate::caller::Caller;
use crate::principal::BearerToken;
use crate::refusal::Refusal;
use crate::replica::Replica;

/// The cookie with the bearer token. It counts here and nowhere else in the service.
const NAME: &str = "fencelock";

/// How long a browser keeps it, in seconds.
const LIFE: u32 = 12 * 3600;

/// The header by which the script asks for the main part of a page alone.
const PART: &str = "fencelock-part";

/// The person who looks at a page.
pub(super) struct Visitor {
    pub(super) caller: Caller,
    /// The token came in the cookie.
    pub(super) logged_in: bool,
    pub(super) replica: Arc<Replica>,
    /// Whether only the main part of the page is wanted.
    pub(super) part: bool,
    /// The path and query.
    pub(super) target: String,
}

impl FromRequestParts<Arc<Replica>> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        replica: &Arc<Replica>,
    ) -> Result<Self, Response> {
        let token = token(&parts.headers);
        let known = token.and_then(|token| replica.access().of_token(&token));
        let logged_in = known.is_some();
        let caller = match known {
            Some(known) => Caller::of(known, parts, replica),
            // Known by a certificate, or anonymous.
            None => Caller::from_request_parts(parts, replica)
                .await
                .map_err(Refusal::into_response)?,
        };
        Ok(Self {
            caller,
            logged_in,
            replica: Arc::clone(replica),
            part: parts.headers.contains_key(PART),
            target: parts
                .uri
                .path_and_query()
                .map_or_else(String::new, ToString::to_string),
        })
    }
}

fn token(headers: &HeaderMap) -> Option<BearerToken> {
    let mut cookies = headers.get_all(COOKIE).iter();
    cookies.find_map(|cookies| {
        let mut pairs = cookies.to_str().ok()?.split(';');
        let ours = |pair: &str| {
            pair.trim()
                .strip_prefix(NAME)?
                .strip_prefix('=')?
                .parse()
                .ok()
        };
        pairs.find_map(ours)
    })
}

/// Sets the cookie with a token, or removes it.
pub(super) fn set_cookie(response: &mut Response, token: Option<&BearerToken>, replica: &Replica) {
    let (value, life) = match token {
        Some(token) => (token.secret(), LIFE),
        None => (String::new(), 0),
    };
    // Behind a proxy that ends TLS, the advertised URL shows that it does.
    let advertised = replica.config.advertise.as_deref();
    let tls =
        replica.config.tls.is_some() || advertised.is_some_and(|url| url.starts_with("https:"));
    let secure = if tls { "; Secure" } else { "" };
    let cookie = format!(
        "{NAME}={value}; Path=/dashboard; Max-Age={life}; HttpOnly; SameSite=Strict{secure}"
    );
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
}
