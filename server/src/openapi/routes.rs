//! Every route: what it does, who may call it, its parameters and its answers.

use fencelock_wire::{Kind, LINES};

/// A method on a path.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// One sentence.
    pub(super) summary: &'static str,
    /// The right that the caller needs; `None` if every caller may use the route.
    pub(super) right: Option<&'static str>,
    pub(super) parameters: &'static [Parameter],
    /// The schema of the body.
    pub(super) body: Option<&'static str>,
    pub(super) answers: &'static [Answer],
    /// The problems of this route, besides those of every route.
    pub(super) problems: &'static [Kind],
}

/// A parameter of a request.
pub(super) struct Parameter {
    pub(super) place: Place,
    pub(super) name: &'static str,
    pub(super) required: bool,
    /// A JSON schema.
    pub(super) schema: &'static str,
    pub(super) what: &'static str,
}

/// The part of a request that has a parameter.
pub(super) enum Place {
    Path,
    Query,
    Header,
}

/// A successful answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) what: &'static str,
    pub(super) media: &'static str,
    /// The schema of a JSON answer, or of one line of an answer in lines.
    pub(super) schema: Option<&'static str>,
}

/// Any route may answer with these.
pub(super) const ALWAYS: &[Kind] = &[
    Kind::Invalid,
    Kind::Forbidden,
    Kind::TooLarge,
    Kind::Internal,
];

const fn answer(status: u16, what: &'static str, schema: &'static str) -> Answer {
    Answer {
        status,
        what,
        media: "application/json",
        schema: Some(schema),
    }
}

const fn query(name: &'static str, schema: &'static str, what: &'static str) -> Parameter {
    Parameter {
        place: Place::Query,
        name,
        required: false,
        schema,
        what,
    }
}

const ID: Parameter = Parameter {
    place: Place::Path,
    name: "id",
    required: true,
    schema: r##"{"$ref":"#/components/schemas/ClaimId"}"##,
    what: "The claim: 32 hex digits, the first 20 of the SHA-256 of the claim key and 12 of a count",
};
const KEY: Parameter = Parameter {
    place: Place::Header,
    name: "Fencelock-Key",
    required: true,
    schema: r##"{"$ref":"#/components/schemas/Key"}"##,
    what: "The claim key: 43 to 86 characters of A-Z a-z 0-9 _ -, with 256 random bits; a secret",
};
const REPLICA: Parameter = Parameter {
    place: Place::Header,
    name: "Fencelock-Replica",
    required: false,
    schema: r#"{"type":"string","pattern":"^[0-9a-f]{16}$"}"#,
    what: "The replica of the claim; required on a store that is bound to replicas",
};
const NAME: Parameter = Parameter {
    required: true,
    ..query(
        "name",
        r##"{"$ref":"#/components/schemas/LockName"}"##,
        "The lock",
    )
};

/// Problems of every route that calls the store for a caller.
const STORE: [Kind; 5] = [
    Kind::Unauthorized,
    Kind::NotALock,
    Kind::Unsupported,
    Kind::StoreRefuses,
    Kind::Unavailable,
];
const LOOK: &[Kind] = &[
    STORE[0],
    STORE[1],
    STORE[2],
    STORE[3],
    STORE[4],
    Kind::Quota,
];
const ASK: &[Kind] = &[
    STORE[0],
    STORE[1],
    STORE[2],
    STORE[3],
    STORE[4],
    Kind::NotJson,
    Kind::Quota,
];
const TAKE: &[Kind] = &[
    STORE[0],
    STORE[1],
    STORE[2],
    STORE[3],
    STORE[4],
    Kind::NotJson,
    Kind::Quota,
    Kind::Held,
    Kind::Ended,
    Kind::Lost,
    Kind::WrongKey,
    Kind::NameTheReplica,
    Kind::OtherReplica,
    Kind::Draining,
];
const GO_ON: &[Kind] = &[
    STORE[0],
    STORE[1],
    STORE[2],
    STORE[3],
    STORE[4],
    Kind::NotJson,
    Kind::Lost,
    Kind::Ended,
    Kind::WrongKey,
    Kind::NameTheReplica,
    Kind::OtherReplica,
];

pub(super) const ROUTES: &[Route] = &[
    Route {
        method: "get",
        path: "/v1/store",
        summary: "What the store behind the service promises, and which replica answers.",
        right: Some("any"),
        parameters: &[],
        body: None,
        answers: &[answer(200, "The store's promises", "Store")],
        problems: &[Kind::Unauthorized],
    },
    Route {
        method: "get",
        path: "/v1/store/findings",
        summary: "What is wrong with the store as it is now.",
        right: Some("look at all names"),
        parameters: &[],
        body: None,
        answers: &[answer(
            200,
            "The findings; an empty list is good",
            "Findings",
        )],
        problems: LOOK,
    },
    Route {
        method: "post",
        path: "/v1/claims",
        summary: "The simple mode: one request takes a lock, waiting included. The service draws the claim and its key.",
        right: Some("take"),
        parameters: &[],
        body: Some("SimpleTake"),
        answers: &[answer(201, "The lock is held", "SimpleGrant")],
        problems: TAKE,
    },
    Route {
        method: "put",
        path: "/v1/claims/{id}",
        summary: "Takes a lock, joins its queue, or goes on waiting. The client chooses the claim. With Accept: application/x-ndjson, the answer to a claim that waits (202) has its place on the first line, and its outcome on the second one.",
        right: Some("take"),
        parameters: &[ID, KEY, REPLICA],
        body: Some("Take"),
        answers: &[
            answer(200, "The claim holds", "Granted"),
            answer(202, "The claim waits; ask again at once", "Waiting"),
            Answer {
                status: 202,
                what: "The claim waits; ask again at once",
                media: LINES,
                schema: None,
            },
        ],
        problems: TAKE,
    },
    Route {
        method: "post",
        path: "/v1/claims/{id}/renew",
        summary: "Prolongs one hold. Never limited by a quota.",
        right: Some("take"),
        parameters: &[ID, KEY, REPLICA],
        body: Some("Renew"),
        answers: &[answer(200, "The hold was prolonged", "Renewed")],
        problems: GO_ON,
    },
    Route {
        method: "post",
        path: "/v1/claims/{id}/release",
        summary: "Releases, leaves the queue, or undoes a request whose answer was lost. May be repeated.",
        right: Some("take"),
        parameters: &[ID, KEY, REPLICA],
        body: Some("Release"),
        answers: &[answer(
            200,
            "The claim neither holds nor waits any more",
            "Released",
        )],
        problems: GO_ON,
    },
    Route {
        method: "post",
        path: "/v1/renewals",
        summary: "Prolongs up to 500 holds of one key. What happened to a hold is in its answer, not in the status.",
        right: Some("take"),
        parameters: &[KEY, REPLICA],
        body: Some("RenewMany"),
        answers: &[answer(
            200,
            "The answers, in the order of the request",
            "RenewedMany",
        )],
        problems: GO_ON,
    },
    Route {
        method: "post",
        path: "/v1/batch",
        summary: "Up to 128 takes and releases of one key, none of which waits. What happened to one is in its answer, not in \
            the status.",
        right: Some("take"),
        parameters: &[KEY, REPLICA],
        body: Some("Batch"),
        answers: &[Answer {
            status: 200,
            what: "A line of JSON for each, in the order in which the answers are known",
            media: LINES,
            schema: Some("BatchAnswer"),
        }],
        problems: GO_ON,
    },
    Route {
        method: "get",
        path: "/v1/lock",
        summary: "One lock as it is now, or as soon as its highest token has changed.",
        right: Some("look"),
        parameters: &[
            NAME,
            query(
                "seen",
                r#"{"type":"string","pattern":"^(none|[1-9][0-9]{0,15})$"}"#,
                "The token that was seen last, or none: the answer waits for a change",
            ),
            query(
                "wait_ms",
                r#"{"type":"integer","minimum":0,"maximum":60000}"#,
                "How long to wait for a change, at most 60000; needs seen",
            ),
        ],
        body: None,
        answers: &[answer(200, "Its holders and waiters", "Lock")],
        problems: LOOK,
    },
    Route {
        method: "get",
        path: "/v1/locks",
        summary: "What is held, by page. A page may be empty and have a next one.",
        right: Some("look"),
        parameters: &[
            query(
                "prefix",
                r#"{"type":"string"}"#,
                "What the names begin with",
            ),
            query(
                "cursor",
                r#"{"type":"string"}"#,
                "The member next of the page before",
            ),
            query(
                "limit",
                r#"{"type":"integer","minimum":1,"maximum":1000}"#,
                "About how many locks a page has, 1 to 1000; 100 by default. Some stores return a few more or fewer; only the absence of next tells the end",
            ),
        ],
        body: None,
        answers: &[answer(200, "A page", "Locks")],
        problems: LOOK,
    },
    Route {
        method: "post",
        path: "/v1/attest",
        summary: "How long a process that joins an owner's hold may believe in it.",
        right: Some("look"),
        parameters: &[],
        body: Some("Attest"),
        answers: &[answer(
            200,
            "The hold of that owner, if there is one",
            "Attested",
        )],
        problems: ASK,
    },
    Route {
        method: "post",
        path: "/v1/check",
        summary: "Whether the grant of a sequencer is still held.",
        right: Some("look"),
        parameters: &[],
        body: Some("Check"),
        answers: &[answer(200, "Whether it is", "Checked")],
        problems: ASK,
    },
    Route {
        method: "post",
        path: "/v1/evict",
        summary: "Takes a lock from the holder with a token, or asks that holder for it. Audited.",
        right: Some("evict"),
        parameters: &[],
        body: Some("Evict"),
        answers: &[answer(200, "Whether there was such a holder", "Evicted")],
        problems: ASK,
    },
    Route {
        method: "get",
        path: "/v1/events",
        summary: "Hints as server-sent events: granted, lost, release-requested, leader, draining. Read again after each.",
        right: Some("look, or a claim key"),
        parameters: &[
            query(
                "lock",
                r##"{"$ref":"#/components/schemas/LockName"}"##,
                "Report who leads this lock",
            ),
            query(
                "without",
                r#"{"type":"string","enum":["granted"]}"#,
                "Leave out grants, which answers report",
            ),
            Parameter {
                required: false,
                ..KEY
            },
        ],
        body: None,
        answers: &[Answer {
            status: 200,
            what: "A stream that ends after ten minutes at the latest",
            media: "text/event-stream",
            schema: None,
        }],
        problems: &[
            STORE[0],
            STORE[1],
            STORE[2],
            STORE[3],
            STORE[4],
            Kind::Quota,
            Kind::Draining,
            Kind::WrongKey,
        ],
    },
    Route {
        method: "get",
        path: "/v1/openapi.json",
        summary: "This document.",
        right: None,
        parameters: &[],
        body: None,
        answers: &[Answer {
            status: 200,
            what: "OpenAPI 3.1",
            media: "application/json",
            schema: None,
        }],
        problems: &[],
    },
    Route {
        method: "get",
        path: "/healthz",
        summary: "Whether the process serves requests.",
        right: None,
        parameters: &[],
        body: None,
        answers: &[answer(200, "It does", "Health")],
        problems: &[Kind::Unavailable],
    },
    Route {
        method: "get",
        path: "/readyz",
        summary: "Whether to send requests here: the replica is not about to end, and its store answers.",
        right: None,
        parameters: &[],
        body: None,
        answers: &[answer(200, "It is ready", "Health")],
        problems: &[Kind::Unavailable, Kind::Draining],
    },
    Route {
        method: "get",
        path: "/metrics",
        summary: "What the replica has counted, for Prometheus.",
        right: None,
        parameters: &[],
        body: None,
        answers: &[Answer {
            status: 200,
            what: "The text format of Prometheus",
            media: "text/plain",
            schema: None,
        }],
        problems: &[],
    },
];
