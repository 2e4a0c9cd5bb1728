//! Polls a swarm server.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::protocol::swarm::{
    CLIENT_HEADER, EngineStatusAnswer, PoolInformation, VerboseLog, VerboseLogsAnswer, understand,
};
use crate::terminal::one_line;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Answers of a server at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Engine status.
    pub status: EngineStatusAnswer,
    /// The batch; `None` if the server has no such endpoint or the answer is invalid.
    pub pool: Option<PoolInformation>,
    /// Recent log lines.
    pub logs: Vec<VerboseLog>,
}

/// Client that takes snapshots of one server.
#[derive(Clone, Debug)]
pub struct Collector {
    http: reqwest::Client,
    base: String,
}

impl Collector {
    /// Creates a collector for the server at `base`, such as `http://localhost:10086`.
    pub fn new(http: reqwest::Client, base: String) -> Self {
        Self { http, base }
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// Returns a message if there is no status. Pool and log may be missing, since older servers lack them.
    pub async fn snapshot(&self) -> Result<Snapshot, String> {
        let status = self.get("/get_engine_status").await?;
        let (pool, logs) = tokio::join!(
            self.get("/get_current_batch_rollout_pool_information"),
            self.get::<VerboseLogsAnswer>("/get_verbose_logs"),
        );
        Ok(Snapshot {
            status,
            pool: pool.ok(),
            logs: logs.unwrap_or_default().entries,
        })
    }

    async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, String> {
        let request = self.http.get(format!("{}{path}", self.base));
        let request = request
            .header(CLIENT_HEADER, env!("CARGO_PKG_VERSION"))
            .timeout(TIMEOUT);
        let answer = request.send().await.map_err(|error| sentence(&error))?;
        let code = answer.status();
        if code == reqwest::StatusCode::UNAUTHORIZED {
            return Err("the server requires a valid access token".into());
        }
        if !code.is_success() {
            return Err(format!("the server answered {code} to {path}"));
        }
        let body = answer.bytes().await.map_err(|error| sentence(&error))?;
        let not_ours = |_| format!("unexpected response to {path}: not a swarm server");
        let mut answer = serde_json::from_slice(&body).map_err(not_ours)?;
        make_printable(&mut answer);
        understand(answer.to_string().as_bytes()).map_err(not_ours)
    }
}

/// Escapes control characters in everything a server sends.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = one_line(text),
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(fields) => {
            let printable = std::mem::take(fields).into_iter().map(|(name, mut field)| {
                make_printable(&mut field);
                (one_line(&name), field)
            });
            *fields = printable.collect();
        }
        _ => {}
    }
}

/// Describes an error without its URL, which may contain a token.
fn sentence(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        format!("timed out after {} s", TIMEOUT.as_secs())
    } else if error.is_connect() {
        "cannot connect".into()
    } else {
        "the connection was lost".into()
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;
    use crate::protocol::swarm::EngineStatus;

    fn collector(port: u16) -> Collector {
        let http = reqwest::Client::builder().tls_certs_only([]).build().unwrap();
        Collector::new(http, format!("http://127.0.0.1:{port}"))
    }

    #[tokio::test]
    async fn an_older_server_is_looked_at_and_one_that_went_away_is_told() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let status = get(|| async { r#"{"engine_status":"ENGINE.BOOTING","engine_status_detail":"loading"}"# });
        let server = Router::new().route("/get_engine_status", status);
        let serving = tokio::spawn(async move { axum::serve(listener, server).await });

        let snapshot = collector(port).snapshot().await.unwrap();
        assert_eq!(snapshot.status.engine_status, EngineStatus::Booting);
        assert_eq!(snapshot.status.engine_status_detail.as_deref(), Some("loading"));
        assert!(snapshot.pool.is_none() && snapshot.logs.is_empty());

        serving.abort();
        let _ = serving.await;
        assert_eq!(collector(port).snapshot().await.unwrap_err(), "cannot connect");
    }

    #[test]
    fn a_python_servers_nulls_and_missing_fields_are_understood() {
        let status: EngineStatusAnswer =
            understand(br#"{"engine_status":"ENGINE.OFFLINE","global_step":null}"#).unwrap();
        assert_eq!((status.engine_status, status.global_step), (EngineStatus::Offline, 0));
        let pool: PoolInformation = understand(
            br#"{"sample_collection_method":"rollout_until_finish_enough_tasks","completed_episodes":2,
                "completed_tasks_rewards":{"t":[1.0,null]},"running_episode_details":null,"swarm_client_instruction":{},
                "something_new":{"a":[1]}}"#,
        )
        .unwrap();
        assert_eq!(pool.completed_tasks_rewards["t"], [1.0]);
        assert!(pool.running_episode_details.is_none());
    }

    /// Seen with bidi overrides in an engine's detail and in names of tasks.
    #[test]
    fn no_text_of_a_server_steers_the_terminal() {
        let mut answer = serde_json::json!({"t\u{1b}]52;c;x\u{7}": [1.0, "a\u{202e}b\nc"]});
        make_printable(&mut answer);
        assert_eq!(
            answer,
            serde_json::json!({"t\\u{1b}]52;c;x\\u{7}": [1.0, "a\\u{202e}b c"]})
        );
    }

    #[test]
    fn what_is_no_swarm_servers_answer_is_not_understood() {
        for body in ["<html>", "{}", r#"{"engine_status":"READY"}"#] {
            assert!(understand::<EngineStatusAnswer>(body.as_bytes()).is_err(), "{body}");
        }
    }
}
