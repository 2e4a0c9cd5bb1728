//! Request ids: the answer of every request has one, and so does every line of the log that the request causes, in this
//! process and in the engine.

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use rand::Rng;
use tracing::{Instrument, Span, field};

use crate::config::checksum::hex;
use crate::protocol::engine::REQUEST_ID_HEADER;

/// Maximum number of characters logged of an episode's id.
const ID_CHARS: usize = 64;

tokio::task_local! {
    static REQUEST_ID: String;
}

/// Middleware: handles a request in a span with its id, its path and, once [`names_episode`] is called, its episode.
pub async fn in_span(request: Request, next: Next) -> Response {
    let id = hex(&rand::rng().random::<[u8; 8]>());
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let span = tracing::info_span!("request", id, path, episode = field::Empty);
    let header = HeaderValue::from_str(&id).ok(); // always: the id is hexadecimal
    let mut response = REQUEST_ID.scope(id, next.run(request)).instrument(span.clone()).await;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
    if let Some(header) = header {
        response.headers_mut().insert(REQUEST_ID_HEADER, header);
    }
    response
}

/// Notes the episode that the current request is about; a client may have named it, so its id may be anything.
pub fn names_episode(uuid: &str) {
    let shown: String = uuid.chars().take(ID_CHARS).collect();
    Span::current().record("episode", shown);
}

/// Returns the id of the current request, if this task handles one.
pub fn current() -> Option<String> {
    REQUEST_ID.try_with(String::clone).ok()
}

/// Makes work that outlives its request belong to it, for logs and for the engine.
pub fn carried<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let id = current();
    let work = work.in_current_span();
    async {
        match id {
            Some(id) => REQUEST_ID.scope(id, work).await,
            None => work.await,
        }
    }
}
