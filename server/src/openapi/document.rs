//! The OpenAPI 3.1 document, made from the table of routes.

use std::collections::BTreeMap;

use fencelock_wire::{CONTENT_TYPE, Kind};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::routes::{ALWAYS, Parameter, Place, ROUTES, Route};

/// The bodies.
#[derive(OpenApi)]
#[openapi(components(schemas(
    fencelock_wire::Attest,
    fencelock_wire::Attested,
    fencelock_wire::Batch,
    fencelock_wire::BatchAnswer,
    fencelock_wire::Check,
    fencelock_wire::Checked,
    fencelock_wire::Evict,
    fencelock_wire::Evicted,
    fencelock_wire::Findings,
    fencelock_wire::Granted,
    fencelock_wire::Lock,
    fencelock_wire::Locks,
    fencelock_wire::Problem,
    fencelock_wire::Release,
    fencelock_wire::Released,
    fencelock_wire::Renew,
    fencelock_wire::RenewMany,
    fencelock_wire::Renewed,
    fencelock_wire::RenewedMany,
    fencelock_wire::SimpleGrant,
    fencelock_wire::SimpleTake,
    fencelock_wire::Store,
    fencelock_wire::Take,
    fencelock_wire::Waiting,
    fencelock_wire::schema::ClaimId,
    fencelock_wire::schema::Key,
    fencelock_wire::schema::LockName,
    fencelock_wire::schema::PermitCount,
    fencelock_wire::schema::Sequencer,
    fencelock_wire::schema::Token,
)))]
struct Bodies;

pub(super) fn document() -> Value {
    // This cannot fail: the schemas are names and descriptions.
    let mut document = serde_json::to_value(Bodies::openapi()).unwrap_or_default();
    document["openapi"] = json!("3.1.0");
    document["info"] = json!({
        "title": "fencelock",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "A distributed lock over HTTP. The store keeps the locks, each client measures its own leases, and a replica only forwards requests. Durations are in milliseconds; those of answers count from when the client sent the request. Clients ignore members of answers \
            that they do not know; unknown members of requests are refused.",
        "license": {"name": "Apache-2.0 OR MIT"},
    });
    document["components"]["schemas"]["Health"] = json!({
        "type": "object",
        "required": ["status"],
        "properties": {"status": {"type": "string", "description": "Always ok"}},
    });
    document["components"]["securitySchemes"] = json!({
        "bearer": {"type": "http", "scheme": "bearer", "description": "Drawn by fencelock serve token NAME"},
        "certificate": {"type": "mutualTLS"},
    });
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_default();
        path.insert(route.method.to_owned(), operation(route));
    }
    document["paths"] = json!(paths);
    strip_links(&mut document);
    document
}

/// Removes the links of Rust from the descriptions, which are those of types: ``[`X`](crate::X)`` becomes `` `X` ``.
fn strip_links(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(strip_links),
        Value::Array(items) => items.iter_mut().for_each(strip_links),
        Value::String(text) if text.contains("[`") => {
            let mut plain = String::with_capacity(text.len());
            let mut links = text.split("[`");
            plain.push_str(links.next().unwrap_or_default());
            for link in links {
                let (name, after) = link.split_once("`]").unwrap_or((link, ""));
                let target = after.strip_prefix("(crate::");
                let target = target.and_then(|target| target.split_once(')'));
                let after = target.map_or(after, |(_, after)| after);
                plain.extend(["`", name, "`", after]);
            }
            *text = plain;
        }
        _ => {}
    }
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "responses": responses(route),
    });
    if let Some(right) = route.right {
        operation["description"] = json!(format!("Right: {right}."));
        // An empty object allows anonymous callers, for a service without principals.
        operation["security"] = json!([{"bearer": []}, {"certificate": []}, {}]);
    }
    if !route.parameters.is_empty() {
        let parameters: Vec<Value> = route.parameters.iter().map(parameter).collect();
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = route.body {
        operation["requestBody"] = json!({
            "required": true,
            "content": {"application/json": {"schema": reference(body)}},
        });
    }
    operation
}

fn parameter(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": match parameter.place {
            Place::Path => "path",
            Place::Query => "query",
            Place::Header => "header",
        },
        "required": parameter.required,
        "description": parameter.what,
        // Every schema in the table is JSON.
        "schema": serde_json::from_str::<Value>(parameter.schema).unwrap_or_default(),
    })
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    for answer in route.answers {
        let schema = answer.schema.map_or_else(|| json!({}), reference);
        // A status may have more than one form.
        let response = responses
            .entry(answer.status.to_string())
            .or_insert_with(|| json!({"description": answer.what, "headers": headers(None)}));
        response["content"][answer.media] = json!({"schema": schema});
    }
    let mut problems: BTreeMap<u16, Vec<Kind>> = BTreeMap::new();
    for kind in ALWAYS.iter().chain(route.problems) {
        let of_status = problems.entry(kind.status()).or_default();
        if !of_status.contains(kind) {
            of_status.push(*kind);
        }
    }
    for (status, kinds) in problems {
        let told: Vec<String> = kinds
            .iter()
            .map(|kind| format!("`{}`: {}.", kind.as_str(), kind.title()))
            .collect();
        let content = json!({CONTENT_TYPE: {"schema": reference("Problem")}});
        let what = json!({
            "description": told.join(" "),
            "headers": headers(Some(status)),
            "content": content,
        });
        responses.insert(status.to_string(), what);
    }
    Value::Object(responses)
}

fn headers(problem: Option<u16>) -> Value {
    let mut headers = json!({
        "Fencelock-Replica": {
            "description": "The replica that answers: 16 hex digits, drawn at its start",
            "schema": {"type": "string"},
        },
    });
    if matches!(problem, Some(429 | 503)) {
        headers["Retry-After"] = json!({
            "description": "After how many seconds to ask again",
            "schema": {"type": "integer"},
        });
    }
    headers
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}
