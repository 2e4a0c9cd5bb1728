//! Connections: a limited number at once ([`super::places`]), and with limits on how long a peer may leave things undone,
//! so that those who dawdle, or open connections and say nothing, do not stop others.

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

use super::io_timeout::StallLimit;
use super::places::{Phase, Place, Places};

/// How long a peer may go on sending after its last answer, and how much, so that an answer which came before the end of
/// a body is not lost with the connection.
const LINGER: Duration = Duration::from_secs(30);
const LINGER_BYTES: u64 = 256 * 1024 * 1024;
/// How long it may pause meanwhile.
const LINGER_PAUSE: Duration = Duration::from_secs(2);
/// Most of a request's head, in bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// Before another try to accept where the system has no more files to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Those over the limit that are told so at one time; further ones are just closed.
const REFUSALS: usize = 64;

/// What connections are allowed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// From the start of a connection to the end of its first request's head, TLS included.
    pub first_request: Duration,
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
            first_request: Duration::from_secs(20),
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
    places: Arc<Places>,
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
            places: Places::new(limits.connections),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            tasks: TaskTracker::new(),
            finishing: CancellationToken::new(),
        }
    }

    /// Accepts for as long as it is polled.
    pub async fn accept_from(&self, listener: TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.take(stream, peer.ip()),
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

    fn take(&self, stream: TcpStream, peer: IpAddr) {
        // Answers are small and many; waiting to fill packets only makes them late.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("a connection without TCP_NODELAY: {error}");
        }
        if let Some(place) = self.places.take(peer) {
            let (app, tls) = (self.app.clone(), self.tls.clone());
            let serving = serve(stream, app, tls, self.limits, self.finishing.clone(), Arc::new(place));
            self.tasks.spawn(logged(serving));
        } else if let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() {
            let limit = self.limits.connections;
            tracing::warn!("a connection is refused: {limit} are open already");
            // Without TLS: there a refused peer just sees the connection closed.
            if self.tls.is_none() {
                self.tasks.spawn(logged(async move {
                    let refused = refuse(stream, limit).await;
                    drop(place);
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
    finishing: CancellationToken,
    place: Arc<Place>,
) -> io::Result<()> {
    let closed = |reason: &str| Err(io::Error::new(io::ErrorKind::TimedOut, reason));
    // Not by the stream's readiness: tokio takes a new stream for readable until a read has found it empty.
    let silent = async {
        tokio::time::sleep(limits.first_request).await;
        if !place.is_silent() {
            std::future::pending().await
        }
    };
    let conversation = async {
        match tls {
            None => converse(stream, app, limits, &finishing, &place).await,
            Some(tls) => {
                let stream = tokio::select! {
                    stream = tls.accept(stream) => stream?,
                    () = finishing.cancelled() => return Ok(()),
                };
                converse(stream, app, limits, &finishing, &place).await
            }
        }
    };
    tokio::select! {
        outcome = conversation => outcome,
        () = silent => closed("no request came"),
        () = place.displaced() => closed("it made room for another"),
    }
}

/// HTTP/1.1 until the peer has enough.
async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: App,
    limits: Limits,
    finishing: &CancellationToken,
    place: &Arc<Place>,
) -> io::Result<()> {
    let stream = TokioIo::new(StallLimit::new(stream, limits.stall));
    let served = Arc::clone(place);
    let service = service_fn(move |request| Box::pin(answer(app.clone(), request, Arc::clone(&served))));
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, service);
    let outcome = tokio::select! {
        outcome = poll_fn(|cx| connection.poll_without_shutdown(cx)) => outcome,
        () = finishing.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    place.enter(Phase::Idle);
    let stream = connection.into_parts().io.into_inner();
    tokio::select! {
        () = linger(stream) => {}
        () = finishing.cancelled() => {}
    }
    outcome.map_err(io::Error::other)
}

/// Answers one request, for which the connection counts as busy until its answer is through.
async fn answer(
    app: App,
    request: hyper::Request<Incoming>,
    place: Arc<Place>,
) -> Result<hyper::Response<Answer>, Infallible> {
    place.enter(Phase::Answering);
    // Who sends many requests at once waits for the others after each.
    tokio::task::yield_now().await;
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Arc::clone(&place));
    let response = app.oneshot(request).await?;
    Ok(response.map(|body| Answer { body, place }))
}

/// The body of an answer.
struct Answer {
    body: Body,
    place: Arc<Place>,
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
        self.place.enter(Phase::Idle);
    }
}

/// Closes our side and takes what the peer still sends, to its end or a limit. A connection that is closed with unread
/// bytes is reset, and the peer may then never see the answer.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let drained = async {
        stream.shutdown().await?;
        let mut stream = stream.take(LINGER_BYTES);
        let mut buffer = vec![0; 16 * 1024];
        while tokio::time::timeout(LINGER_PAUSE, stream.read(&mut buffer)).await?? > 0 {}
        io::Result::Ok(())
    };
    // Who is cut off here has had the time to read the answer.
    let _ = tokio::time::timeout(LINGER, drained).await;
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
