//! `ajet-swarm serve`: serves a model by the usual APIs, without training.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use tokio::net::TcpListener;

use super::access::Access;
use super::model_server::{ModelArgs, ModelServer};
use crate::client::with_token;
use crate::roll::EndSignals;
use crate::server::Hosts;
use crate::{note, say};

/// Serve a trained model by OpenAI's and Anthropic's APIs, without training.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
CHECKPOINT is a checkpoint or adapter, an experiment directory for its newest checkpoint, an exported model, or anything \
else that ajet.model.path takes. The APIs are /v1/chat/completions, /v1/responses, /v1/messages and /v1/models. On \
loopback, any API key is accepted; elsewhere, the access token is the key.

Examples:
  ajet-swarm serve saved_experiments/quickstart
  ajet-swarm serve my-adapter --base Qwen/Qwen2.5-0.5B-Instruct --port 8080
  ajet-swarm serve my-model --host 0.0.0.0          prints a token that clients need
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"default\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}'")]
pub struct Args {
    /// Checkpoint or model to serve.
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: String,
    /// Port to listen on; 0 selects a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// Let clients load LoRA adapters from below this directory, and sample with them: a training engine does, whose
    /// ajet.rollout.endpoints names this server.
    #[arg(long, value_name = "DIR")]
    adapters: Option<PathBuf>,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    model: ModelArgs,
}

/// Serves until it is interrupted.
///
/// # Errors
/// Fails if the port is taken, or the model cannot be loaded.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let token = args.access.token()?;
    let hosts = Hosts::new(args.access.allowed_host.clone());
    let given = token.as_ref().map(|token| token.token.clone());
    let server = ModelServer::new(&args.checkpoint, &args.model, given, hosts, args.adapters.clone())?;
    let (host, port) = (args.access.host, args.port);
    let listener = TcpListener::bind((host, port)).await;
    let listener = listener
        .with_context(|| format!("cannot listen on {host} port {port}\nhint: choose another port with --port"))?;
    let url = format!("http://{}", reachable(listener.local_addr()?));
    let shutdown = shutdown_signal()?;
    let ready = || {
        say!("serving {} at {url}/v1", args.checkpoint);
        match &token {
            Some(token) if token.is_generated => say!("API key: {} (shown once)", token.text),
            Some(_) => say!("API key: the access token"),
            None => say!("API key: any"),
        }
        note!("press Ctrl-C to stop");
    };
    let own_url = with_token(&url, token.as_ref().map(|token| token.text.as_str()));
    server.serve(listener, &own_url, shutdown, ready).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the address under which this machine reaches a listener.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Completes at the first termination signal. A second one ends the process at once; the engine follows.
fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let mut signals = EndSignals::listen()?;
    Ok(async move {
        signals.next().await;
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(130);
        });
    })
}
