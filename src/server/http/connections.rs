//! Connections: a limited number at once ([`super::connection_permits`]), with timeouts for inactive peers, so that
//! slow or silent ones do not block others.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tower::util::MapRequest;

use super::connection_permits::{ConnectionPermit, ConnectionPermits, Phase};
use super::io_timeout::StallLimit;

/// Time and bytes for which a peer may go on sending after its last answer, so that an answer sent before the end of
/// the request body is not lost with the connection.
const LINGER: Duration = Duration::from_secs(30);
const LINGER_BYTES: u64 = 256 * 1024 * 1024;
/// Maximum pause of the peer meanwhile.
const LINGER_PAUSE: Duration = Duration::from_secs(2);
/// Maximum size of a request's head, in bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// Delay before the next accept when the system is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of refused connections that are being answered; further ones are just closed.
const REFUSALS: usize = 64;

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections.
    pub connections: usize,
    /// Time from accepting a connection to the end of its first request's head, including TLS.
    pub first_request: Duration,
    /// Maximum number of LLM calls at once. Each uses two connections and the memory of its request.
    pub calls: usize,
    /// Time between two requests, and for the head of one. Longer than clients keep idle connections, so that clients
    /// close them and no request is sent into a connection that we are closing.
    pub idle: Duration,
    /// Maximum pause within a request body, or of a client that does not read its answer.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            first_request: Duration::from_secs(20),
            calls: 4096,
            idle: Duration::from_secs(100),
            stall: Duration::from_secs(60),
        }
    }
}

/// The application as a service for connections.
pub type App = MapRequest<Router, fn(Request) -> Request>;

/// Serves connections until it is shut down.
pub struct Connections {
    app: App,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    permits: Arc<ConnectionPermits>,
    refusals: Arc<Semaphore>,
    tasks: TaskTracker,
    shutting_down: CancellationToken,
}

impl Connections {
    /// Creates a server without connections.
    pub fn new(app: App, tls: Option<TlsAcceptor>, limits: Limits) -> Self {
        Self {
            app,
            tls,
            limits,
            permits: ConnectionPermits::new(limits.connections),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            tasks: TaskTracker::new(),
            shutting_down: CancellationToken::new(),
        }
    }

    /// Accepts connections for as long as it is polled.
    pub async fn accept_from(&self, listener: TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.serve_connection(stream, peer.ip()),
                // A peer that is already gone is no error; without file descriptors, wait for other connections to
                // close.
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits up to `timeout` for pending answers, then closes all connections.
    pub async fn shut_down(self, timeout: Duration) {
        self.shutting_down.cancel();
        self.tasks.close();
        // A peer that has not read its answer by now will not.
        let _ = tokio::time::timeout(timeout, self.tasks.wait()).await;
    }

    fn serve_connection(&self, stream: TcpStream, peer: IpAddr) {
        // Answers are small and frequent: sending them immediately beats filling packets.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot set TCP_NODELAY: {error}");
        }
        if let Some(permit) = self.permits.acquire(peer) {
            let (app, tls) = (self.app.clone(), self.tls.clone());
            let serving = serve(
                stream,
                app,
                tls,
                self.limits,
                self.shutting_down.clone(),
                Arc::new(permit),
            );
            self.tasks.spawn(logged(serving));
        } else if let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() {
            let limit = self.limits.connections;
            tracing::warn!("refused a connection: the maximum of {limit} is open");
            // Only without TLS: with TLS, a refused peer just sees the connection closed.
            if self.tls.is_none() {
                self.tasks.spawn(logged(async move {
                    let refused = refuse(stream, limit).await;
                    drop(permit);
                    refused
                }));
            }
        }
    }
}

async fn logged(work: impl Future<Output = io::Result<()>>) {
    if let Err(error) = work.await {
        tracing::debug!("connection: {error}");
    }
}

async fn serve(
    stream: TcpStream,
    app: App,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    shutting_down: CancellationToken,
    permit: Arc<ConnectionPermit>,
) -> io::Result<()> {
    let closed = |reason: &str| Err(io::Error::new(io::ErrorKind::TimedOut, reason));
    // `readable` does not help: tokio takes a new stream as readable until a read finds it empty.
    let silent = async {
        tokio::time::sleep(limits.first_request).await;
        if !permit.is_silent() {
            std::future::pending().await
        }
    };
    let conversation = async {
        match tls {
            None => serve_http(stream, app, limits, &shutting_down, &permit).await,
            Some(tls) => {
                let stream = tokio::select! {
                    stream = tls.accept(stream) => stream?,
                    () = shutting_down.cancelled() => return Ok(()),
                };
                serve_http(stream, app, limits, &shutting_down, &permit).await
            }
        }
    };
    tokio::select! {
        outcome = conversation => outcome,
        () = silent => closed("no request arrived"),
        () = permit.evicted() => closed("evicted for another connection"),
    }
}

/// Serves HTTP/1.1 until the peer closes the connection.
async fn serve_http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: App,
    limits: Limits,
    shutting_down: &CancellationToken,
    permit: &Arc<ConnectionPermit>,
) -> io::Result<()> {
    let stream = TokioIo::new(StallLimit::new(stream, limits.stall));
    let served = Arc::clone(permit);
    let service = service_fn(move |request| Box::pin(answer(app.clone(), request, Arc::clone(&served))));
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, service);
    let outcome = tokio::select! {
        outcome = poll_fn(|cx| connection.poll_without_shutdown(cx)) => outcome,
        () = shutting_down.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    permit.enter(Phase::Idle);
    let stream = connection.into_parts().io.into_inner();
    tokio::select! {
        () = linger(stream) => {}
        () = shutting_down.cancelled() => {}
    }
    outcome.map_err(io::Error::other)
}

/// Answers one request; the connection counts as busy until the answer is sent.
async fn answer(
    app: App,
    request: hyper::Request<Incoming>,
    permit: Arc<ConnectionPermit>,
) -> Result<hyper::Response<Answer>, Infallible> {
    permit.enter(Phase::Answering);
    // A client with many requests waits for those of other clients after each.
    tokio::task::yield_now().await;
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Arc::clone(&permit));
    let response = app.oneshot(request).await?;
    Ok(response.map(|body| Answer { body, permit }))
}

/// Body of an answer.
struct Answer {
    body: Body,
    permit: Arc<ConnectionPermit>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.permit.enter(Phase::Idle);
    }
}

/// Closes the sending side and reads what the peer still sends, up to a limit. Closing with unread bytes would reset
/// the connection, and the peer might never see the answer.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let drained = async {
        stream.shutdown().await?;
        let mut stream = stream.take(LINGER_BYTES);
        let mut buffer = vec![0; 16 * 1024];
        while tokio::time::timeout(LINGER_PAUSE, stream.read(&mut buffer)).await?? > 0 {}
        io::Result::Ok(())
    };
    // A peer cut off here has had time to read the answer.
    let _ = tokio::time::timeout(LINGER, drained).await;
}

/// Answers 503 to whatever the request is.
async fn refuse(mut stream: TcpStream, limit: usize) -> io::Result<()> {
    let body =
        format!(r#"{{"detail":"the server has reached its limit of {limit} connections; hint: try again shortly"}}"#);
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 3\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    tokio::time::timeout(Duration::from_secs(1), async {
        stream.write_all(answer.as_bytes()).await?;
        linger(stream).await;
        Ok(())
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::sync::Mutex;
    use tower::Layer;

    // Seen with 500 connections of 500 requests each, sent without reading an answer: `/health` took 9 s.
    #[tokio::test]
    async fn many_requests_on_one_connection_take_turns_with_those_of_others() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let router = Router::new().route(
            "/{name}",
            get(async move |request: Request| {
                noted.lock().unwrap().push(request.uri().path().to_owned());
            }),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app: App = tower::util::MapRequestLayer::new((|request| request) as fn(Request) -> Request).layer(router);
        let connections = Connections::new(app, None, Limits::default());
        let mut greedy = TcpStream::connect(address).await.unwrap();
        greedy
            .write_all("GET /greedy HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(12).as_bytes())
            .await
            .unwrap();
        let mut modest = TcpStream::connect(address).await.unwrap();
        modest
            .write_all(b"GET /modest HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let answered = async {
            let mut answer = Vec::new();
            modest.read_to_end(&mut answer).await.unwrap();
            while seen.lock().unwrap().len() < 13 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 "));
        };
        tokio::select! {
            () = answered => {}
            never = connections.accept_from(listener) => match never {},
        }
        let at = seen.lock().unwrap().iter().position(|path| path == "/modest").unwrap();
        assert!(at <= 3, "{at} of the others' came first");
    }
}
