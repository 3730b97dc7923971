//! Why a request was not served: `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};

/// The media type of a problem.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// The beginning of every `type`.
const URN: &str = "urn:fencelock:";

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $word:literal $status:literal $title:literal;)*) => {
        /// The kinds of problems. A `type` ends in one of these words.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $word,)* }
            }

            /// The HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$kind => $status,)* }
            }

            /// A few words for people, the same for each problem of the kind.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$kind => $title,)* }
            }
        }
    };
}

kinds! {
    /// Another claim holds the lock, and the request was not to wait longer. Nothing of the claim is left.
    Held "held" 409 "The lock is held by another";
    /// The store has something under this name that is not a lock.
    NotALock "not-a-lock" 409 "What is stored under this name is not a lock";
    /// The claim does not hold, or not by this grant.
    Lost "lost" 410 "The lock was lost";
    /// This replica has ended the claim; take a new id.
    Ended "ended" 410 "This claim is over; take a new id";
    /// The store did not answer. The outcome is unknown.
    Unavailable "unavailable" 503 "The store did not answer";
    /// This replica is about to end; use another one. Nothing was sent to the store.
    Draining "draining" 503 "This replica is about to end; use another one";
    /// The claim belongs to another replica.
    OtherReplica "other-replica" 421 "The claim belongs to another replica";
    /// The request must name the replica that it means.
    NameTheReplica "name-the-replica" 428 "Name the replica of the claim";
    /// The store does not offer this.
    Unsupported "unsupported" 422 "The store does not offer this";
    /// The request cannot be used.
    Invalid "invalid" 400 "The request cannot be used";
    /// There is no such path.
    NotFound "not-found" 404 "There is no such path";
    /// The path has no such method.
    MethodNotAllowed "method-not-allowed" 405 "The path does not allow this method";
    /// The credentials are missing or wrong.
    Unauthorized "unauthorized" 401 "Credentials are missing or wrong";
    /// The principal has no such right.
    Forbidden "forbidden" 403 "You may not do this";
    /// The claim does not belong to this key.
    WrongKey "wrong-key" 403 "The claim key does not fit the claim";
    /// The body is too large.
    TooLarge "too-large" 413 "The request is too large";
    /// The body must be JSON, with that content type.
    NotJson "not-json" 415 "The body must be application/json";
    /// Too many requests.
    Quota "quota" 429 "Too many requests";
    /// The store refuses the service.
    StoreRefuses "store-refuses" 502 "The store refuses the service";
    /// A bug in the service.
    Internal "internal" 500 "An error within the service";
}

impl Kind {
    /// The kind of a `type`; `None` for a kind that this version does not know.
    #[must_use]
    pub fn of_type(text: &str) -> Option<Self> {
        let word = text.strip_prefix(URN)?;
        Self::ALL.iter().copied().find(|kind| kind.as_str() == word)
    }
}

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `urn:fencelock:` and the word of its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// A few words for people, the same for each problem of the kind.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was requested, what happened, and what to do.
    pub detail: String,
    /// The lock, if the request was about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// With `other-replica`: the id of the claim's replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// With `other-replica`: the URL of the claim's replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
}

impl Problem {
    /// A problem of this kind.
    #[must_use]
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("{URN}{}", kind.as_str()),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: detail.into(),
            name: None,
            replica: None,
            advertise: None,
        }
    }

    /// Its kind; `None` for a kind that this version does not know.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        Kind::of_type(&self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_type() {
        for &kind in Kind::ALL {
            let problem = Problem::new(kind, "why");
            assert_eq!(problem.kind(), Some(kind));
            assert_eq!(problem.status, kind.status());
        }
    }

    #[test]
    fn a_problem_reads_as_documented() {
        let text = serde_json::to_string(&Problem::new(Kind::Held, "lock a is held")).unwrap();
        let want = r#"{"type":"urn:fencelock:held","title":"The lock is held by another","status":409,"detail":"lock a is held"}"#;
        assert_eq!(text, want);
    }
}
