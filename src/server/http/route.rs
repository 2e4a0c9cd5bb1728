//! A route: a path, what answers it, and how it is described.

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::server::shared::Shared;

/// A path, its handler and its description.
pub struct Route {
    /// GET or POST.
    pub method: Method,
    /// Parameters are in braces.
    pub path: &'static str,
    /// A sentence.
    pub about: &'static str,
    /// What is sent, where a body is read.
    pub body: Option<Kind>,
    /// What comes back when all is well.
    pub answer: Kind,
    /// What answers.
    pub handler: MethodRouter<Arc<Shared>>,
}

/// What a body is.
pub enum Kind {
    /// JSON of this schema.
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// Bytes of this content type.
    Raw(&'static str),
}

/// JSON of a type.
pub fn json<T: JsonSchema>() -> Kind {
    Kind::Json(|generator| generator.subschema_for::<T>())
}

/// A GET.
pub fn get<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    answer: Kind,
    about: &'static str,
) -> Route {
    Route {
        method: Method::GET,
        path,
        about,
        body: None,
        answer,
        handler: on(MethodFilter::GET, handler),
    }
}

/// A POST that reads a body.
pub fn post<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    body: Kind,
    answer: Kind,
    about: &'static str,
) -> Route {
    Route {
        body: Some(body),
        ..order(path, handler, answer, about)
    }
}

/// A POST whose body is not looked at.
pub fn order<T: 'static>(
    path: &'static str,
    handler: impl Handler<T, Arc<Shared>>,
    answer: Kind,
    about: &'static str,
) -> Route {
    Route {
        method: Method::POST,
        handler: on(MethodFilter::POST, handler),
        path,
        about,
        body: None,
        answer,
    }
}
