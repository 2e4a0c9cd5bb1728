//! OpenAPI document of the HTTP interface, generated from the routes.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::route::{Kind, Route};
use crate::protocol::swarm::ErrorDetail;
use crate::protocol::{anthropic, openai};

/// Returns the document (OpenAPI 3.1, whose schemas are JSON Schema).
pub fn document(routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = SchemaGenerator::new(settings);
    let mut paths = Map::new();
    for route in routes {
        let methods = paths.entry(plain_path(route)).or_insert_with(|| json!({}));
        let method = route.method.as_str().to_ascii_lowercase();
        let is_second = methods.as_object().is_some_and(|methods| !methods.is_empty());
        methods[&method] = operation(route, &mut generator);
        if is_second {
            // Ids are unique.
            methods[&method]["operationId"] = format!("{method}_{}", operation_id(route)).into();
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ajet-swarm",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Swarm server: clients send a training configuration and run episodes; the engine samples \
                and trains. If the server requires an access token, send it as bearer token or put /t/TOKEN before the \
                path; the model API (/v1) requires an episode's key as bearer token.",
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    })
}

/// Converts the router's wildcard syntax to OpenAPI's.
fn plain_path(route: &Route) -> String {
    route.path.replace("{*", "{")
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let error = match route.path {
        path if path.starts_with("/v1/messages") => generator.subschema_for::<anthropic::ErrorBody>(),
        path if path.starts_with("/v1/") => generator.subschema_for::<openai::ErrorBody>(),
        _ => generator.subschema_for::<ErrorDetail>(),
    };
    let mut operation = json!({
        "summary": route.summary,
        "operationId": operation_id(route),
        "responses": {
            "200": {"description": "done", "content": content(&route.answer, generator)},
            "default": {"description": "refused", "content": {"application/json": {"schema": error}}},
        },
    });
    if let Some(body) = &route.body {
        operation["requestBody"] = json!({"required": true, "content": content(body, generator)});
    }
    let in_query = route
        .query
        .iter()
        .map(|(name, what)| json!({"name": name, "in": "query", "description": what, "schema": {"type": "string"}}));
    let parameters: Vec<Value> = parameters(&plain_path(route))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .chain(in_query)
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if route.path == "/health" {
        operation["security"] = json!([]);
    }
    operation
}

/// Returns the names in braces.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    let opened = path.split('{').skip(1);
    opened.filter_map(|rest| Some(rest.split_once('}')?.0))
}

fn operation_id(route: &Route) -> String {
    plain_path(route)
        .trim_matches('/')
        .replace(['{', '}'], "")
        .replace('/', "_")
}

fn content(kind: &Kind, generator: &mut SchemaGenerator) -> Value {
    match kind {
        Kind::Json(schema) => json!({"application/json": {"schema": schema(generator)}}),
        Kind::Raw(content_type) => json!({(*content_type): {"schema": {"type": "string", "format": "binary"}}}),
    }
}
