//! Routes with their handlers and descriptions.

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::server::shared::Shared;

/// Path, handler and description of an endpoint.
pub struct Route {
    /// GET, POST or DELETE.
    pub method: Method,
    /// Path, with parameters in braces.
    pub path: &'static str,
    /// One-sentence description.
    pub summary: &'static str,
    /// Query parameters with their descriptions.
    pub query: &'static [(&'static str, &'static str)],
    /// Request body, if one is read.
    pub body: Option<Kind>,
    /// Answer on success.
    pub answer: Kind,
    /// Handler.
    pub handler: MethodRouter<Arc<Shared>>,
}

impl Route {
    /// Adds query parameters with their descriptions.
    pub fn with_query(self, query: &'static [(&'static str, &'static str)]) -> Self {
        Self { query, ..self }
    }
}

/// Kind of a body.
pub enum Kind {
    /// JSON with this schema.
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// Bytes with this content type.
    Raw(&'static str),
}

/// Returns the kind of a JSON body of type `T`.
pub fn json<T: JsonSchema>() -> Kind {
    Kind::Json(|generator| generator.subschema_for::<T>())
}

/// Creates a GET route.
pub fn get<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    answer: Kind,
    summary: &'static str,
) -> Route {
    without_body((Method::GET, MethodFilter::GET), path, handler, answer, summary)
}

/// Creates a POST route that reads a body.
pub fn post<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    body: Kind,
    answer: Kind,
    summary: &'static str,
) -> Route {
    Route {
        body: Some(body),
        ..post_without_body(path, handler, answer, summary)
    }
}

/// Creates a DELETE route.
pub fn delete<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    answer: Kind,
    summary: &'static str,
) -> Route {
    without_body((Method::DELETE, MethodFilter::DELETE), path, handler, answer, summary)
}

/// Creates a POST route that ignores the body.
pub fn post_without_body<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    answer: Kind,
    summary: &'static str,
) -> Route {
    without_body((Method::POST, MethodFilter::POST), path, handler, answer, summary)
}

fn without_body<T: 'static>(
    (method, filter): (Method, MethodFilter),
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    answer: Kind,
    summary: &'static str,
) -> Route {
    Route {
        method,
        path,
        summary,
        query: &[],
        body: None,
        answer,
        handler: on(filter, handler),
    }
}
