//! Connections: so many at once, and with limits on how long a peer may leave things undone, so that those who dawdle,
//! or open connections and say nothing, do not stop others.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tower::util::MapRequest;

use super::stall::StallLimit;

/// How long a peer may take to say anything at all, and to agree on TLS.
const FIRST_WORD: Duration = Duration::from_secs(20);
/// Most of a request's head, in bytes.
const HEAD_BYTES: usize = 64 * 1024;
/// Before another try to accept where the system has no more files to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Those over the limit that are told so at one time; further ones are just closed.
const REFUSALS: usize = 64;

/// What connections are allowed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// LLM calls at once. Each holds two connections, and its request until it is through.
    pub calls: usize,
    /// Between two requests, and for the head of one. Longer than clients keep their idle connections, so that it is
    /// they who close them and no request is sent into a connection that we are closing.
    pub idle: Duration,
    /// In the middle of a body without sending more of it, or of an answer without taking more of it.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            calls: 4096,
            idle: Duration::from_secs(100),
            stall: Duration::from_secs(60),
        }
    }
}

/// The application as a service of connections.
pub type App = MapRequest<Router, fn(Request) -> Request>;

/// Serves connections until it is told to finish.
pub struct Connections {
    app: App,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    room: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    tasks: TaskTracker,
    finishing: CancellationToken,
}

impl Connections {
    /// None yet.
    pub fn new(app: App, tls: Option<TlsAcceptor>, limits: Limits) -> Self {
        Self {
            app,
            tls,
            limits,
            room: Arc::new(Semaphore::new(limits.connections)),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            tasks: TaskTracker::new(),
            finishing: CancellationToken::new(),
        }
    }

    /// Accepts for as long as it is polled.
    pub async fn accept_from(&self, listener: TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.take(stream),
                // A peer that is gone already is no fault; out of files, others have to end first.
                Err(error) => {
                    tracing::debug!("accepting a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Lets answers that are on their way get through, `patience` at most, and closes everything.
    pub async fn finish(self, patience: Duration) {
        self.finishing.cancel();
        self.tasks.close();
        // Who has not read the answer by now will not.
        let _ = tokio::time::timeout(patience, self.tasks.wait()).await;
    }

    fn take(&self, stream: TcpStream) {
        // Answers are small and many; waiting to fill packets only makes them late.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("a connection without TCP_NODELAY: {error}");
        }
        match Arc::clone(&self.room).try_acquire_owned() {
            Ok(place) => {
                let serving = serve(
                    stream,
                    self.app.clone(),
                    self.tls.clone(),
                    self.limits,
                    self.finishing.clone(),
                );
                self.tasks.spawn(keeping(place, serving));
            }
            Err(_) => {
                if let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() {
                    let limit = self.limits.connections;
                    tracing::warn!("a connection is refused: {limit} are open already");
                    // Without TLS: there a refused peer just sees the connection closed.
                    if self.tls.is_none() {
                        self.tasks.spawn(keeping(place, refuse(stream, limit)));
                    }
                }
            }
        }
    }
}

/// Runs `work` with its place, which is free again afterwards.
async fn keeping(place: OwnedSemaphorePermit, work: impl Future<Output = io::Result<()>>) {
    if let Err(error) = work.await {
        tracing::debug!("connection: {error}");
    }
    drop(place);
}

async fn serve(
    stream: TcpStream,
    app: App,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    finishing: CancellationToken,
) -> io::Result<()> {
    tokio::select! {
        readable = tokio::time::timeout(FIRST_WORD, stream.readable()) => readable??,
        () = finishing.cancelled() => return Ok(()),
    }
    match tls {
        None => converse(stream, app, limits, finishing).await,
        Some(tls) => {
            let stream = tokio::time::timeout(FIRST_WORD, tls.accept(stream)).await??;
            converse(stream, app, limits, finishing).await
        }
    }
}

/// HTTP/1.1 until the peer has enough.
async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: App,
    limits: Limits,
    finishing: CancellationToken,
) -> io::Result<()> {
    let stream = TokioIo::new(StallLimit::new(stream, limits.stall));
    let service = service_fn(move |request: hyper::Request<Incoming>| app.clone().oneshot(request.map(Body::new)));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = finishing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    outcome.map_err(io::Error::other)
}

/// Says that there is no room, whatever is asked.
async fn refuse(mut stream: TcpStream, limit: usize) -> io::Result<()> {
    let body =
        format!(r#"{{"detail":"the server has {limit} connections open, which is its limit; try again shortly"}}"#);
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 3\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    tokio::time::timeout(Duration::from_secs(1), async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closed with unread bytes, the connection would be reset and the answer perhaps lost.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        Ok(())
    })
    .await?
}
