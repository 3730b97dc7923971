//! The document as a page for people: one section for each route, then one for each body.

use std::fmt::Write;

use serde_json::Value;

pub(super) fn page(document: &Value) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>fencelock: the HTTP API</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"stylesheet\" href=\"/docs/page.css\"></head><body>\
         <h1>fencelock: the HTTP API</h1>",
    );
    let told = text(&document["info"]["description"]);
    push(
        &mut page,
        format_args!(
            "<p>{told}</p><p><a href=\"/v1/openapi.json\">This page as OpenAPI 3.1</a></p>"
        ),
    );
    for (path, methods) in members(&document["paths"]) {
        for (method, operation) in members(methods) {
            route(&mut page, path, method, operation);
        }
    }
    for (name, schema) in members(&document["components"]["schemas"]) {
        body(&mut page, name, schema);
    }
    page.push_str("</body></html>");
    page
}

fn route(page: &mut String, path: &str, method: &str, operation: &Value) {
    let (method, path) = (method.to_uppercase(), escaped(path));
    let (summary, right) = (text(&operation["summary"]), text(&operation["description"]));
    push(
        page,
        format_args!("<h2><code>{method} {path}</code></h2><p>{summary} {right}</p>"),
    );
    let parameters = operation["parameters"].as_array();
    if let Some(parameters) = parameters {
        page.push_str("<table><tr><th>parameter</th><th>in</th><th></th></tr>");
        for parameter in parameters {
            let (name, place) = (text(&parameter["name"]), text(&parameter["in"]));
            let what = text(&parameter["description"]);
            push(
                page,
                format_args!(
                    "<tr><td><code>{name}</code></td><td>{place}</td><td>{what}</td></tr>"
                ),
            );
        }
        page.push_str("</table>");
    }
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    if let Some(link) = link(schema) {
        push(page, format_args!("<p>Body: {link}</p>"));
    }
    page.push_str("<table><tr><th>status</th><th>body</th><th></th></tr>");
    for (status, answer) in members(&operation["responses"]) {
        let what = text(&answer["description"]);
        for (media, content) in members(&answer["content"]) {
            let link = link(&content["schema"]).unwrap_or_else(|| escaped(media));
            push(
                page,
                format_args!("<tr><td>{status}</td><td>{link}</td><td>{what}</td></tr>"),
            );
        }
    }
    page.push_str("</table>");
}

fn body(page: &mut String, name: &str, schema: &Value) {
    let (name, what) = (escaped(name), text(&schema["description"]));
    push(
        page,
        format_args!("<h2 id=\"{name}\"><code>{name}</code></h2><p>{what}</p>"),
    );
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .map(|word| format!("<code>{}</code>", text(word)))
            .collect();
        push(page, format_args!("<p>{}</p>", words.join(", ")));
    }
    let required = schema["required"].as_array();
    page.push_str("<table>");
    for (member, of) in members(&schema["properties"]) {
        let needed = required.is_some_and(|names| names.iter().any(|name| name == member));
        let needed = if needed { "required" } else { "" };
        let kind = link(of).unwrap_or_else(|| escaped(&kind(of)));
        let (member, what) = (escaped(member), text(&of["description"]));
        push(
            page,
            format_args!(
                "<tr><td><code>{member}</code></td><td>{kind}</td><td>{needed}</td><td>{what}</td></tr>"
            ),
        );
    }
    page.push_str("</table>");
}

/// The type of a member in words.
fn kind(schema: &Value) -> String {
    match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
            kinds.join(" or ")
        }
        _ => String::new(),
    }
}

/// A link to the body that a schema refers to: directly, as a list, or as an alternative to null.
fn link(schema: &Value) -> Option<String> {
    let name = schema["$ref"]
        .as_str()
        .and_then(|path| path.rsplit('/').next());
    if let Some(name) = name {
        let name = escaped(name);
        return Some(format!("<a href=\"#{name}\">{name}</a>"));
    }
    if let Some(link) = schema.get("items").and_then(link) {
        return Some(format!("list of {link}"));
    }
    let either = schema["oneOf"].as_array()?;
    either.iter().find_map(link)
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// Writing to a `String` cannot fail.
fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}
