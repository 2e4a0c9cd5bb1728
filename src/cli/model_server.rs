//! A server for one model without training, as `serve` and `chat` run it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::net::TcpListener;

use crate::client::SwarmClient;
use crate::config::dump_yaml;
use crate::config::schema::{Ajet, Data, Engine, Model, OnContextOverflow, Rollout, TrainerCommon};
use crate::engine::served_model::ServedModel;
use crate::protocol::swarm::EngineStatus;
use crate::server::{ChildLauncher, CodeAccess, CodeOptions, Hosts, Options, Server, Token};
use crate::terminal;

/// Interval between status requests while the model loads.
const POLL: Duration = Duration::from_millis(100);

/// Checkpoint and limits of the model.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// Base model of a LoRA adapter, instead of the one that the adapter names.
    #[arg(long, value_name = "MODEL")]
    pub base: Option<String>,
    /// Keep the matrices of a .gguf file quantised in memory; needs a CPU.
    #[arg(long)]
    pub keep_quantized: bool,
    /// Device: `auto`, `cpu`, `cuda:N` or `metal`.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Maximum number of tokens of prompt and answer together; limited by the model's own.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub max_model_len: usize,
}

impl ModelArgs {
    /// Returns the engine's configuration: agents' requests set the sampling, and errors are the usual ones.
    fn config(&self, model: &ServedModel, scratch: &Path) -> Ajet {
        // Of prompt and answer together: a request sets how long its answer may be.
        let length = self.max_model_len.max(2);
        Ajet {
            experiment_name: "serve".into(),
            experiment_dir: scratch.join("serve").to_string_lossy().into_owned(),
            model: Model {
                path: model.base.clone(),
                keep_quantized: self.keep_quantized,
            },
            data: Data {
                max_prompt_length: 1,
                max_response_length: length - 1,
                ..Data::default()
            },
            rollout: Rollout {
                max_model_len: Some(length),
                max_response_length_in_one_turn: Some(length - 1),
                on_context_overflow: OnContextOverflow::Error,
                compute_madness_checklist: Vec::new(),
                agent_madness_termination: false,
                ..Rollout::default()
            },
            trainer_common: TrainerCommon {
                logger: Vec::new(),
                ..TrainerCommon::default()
            },
            engine: Engine {
                device: self.device.clone(),
                ..Engine::default()
            },
            ..Ajet::default()
        }
    }
}

/// A server that is about to load its model.
pub struct ModelServer {
    server: Server,
    /// The engine's directory, in which nothing is kept.
    _scratch: tempfile::TempDir,
}

impl ModelServer {
    /// Creates a server for a checkpoint. Clients may load adapters from below the directory `adapters`, if given.
    ///
    /// # Errors
    /// Fails if the checkpoint is missing or damaged.
    pub fn new(
        checkpoint: &str,
        args: &ModelArgs,
        token: Option<Token>,
        hosts: Hosts,
        adapters: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let model = ServedModel::find(checkpoint, args.base.as_deref())?;
        let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
        let options = Options {
            token,
            hosts,
            serving: Some(checkpoint.to_owned()),
            adapters,
            start_with: Some(dump_yaml(&args.config(&model, scratch.path()))),
            // What is served is this program's engine, whatever code a training server in this directory runs.
            code: CodeOptions {
                access: CodeAccess::Off,
                ..CodeOptions::default()
            },
            ..Options::default()
        };
        let mut arguments: Vec<OsString> = vec!["--sampling-only".into()];
        if let Some(adapter) = model.adapter {
            arguments.extend(["--adapter".into(), adapter.into()]);
        }
        let launcher = ChildLauncher::of_this_program().context("cannot find the path of this program")?;
        Ok(Self {
            server: Server::new(options, Arc::new(launcher.with_arguments(arguments))),
            _scratch: scratch,
        })
    }

    /// Serves until `shutdown` completes. `url` is the server's, with its token; `ready` is called when the model is
    /// loaded.
    ///
    /// # Errors
    /// Fails if the model cannot be loaded.
    pub async fn serve(
        self,
        listener: TcpListener,
        url: &str,
        shutdown: impl Future<Output = ()>,
        ready: impl FnOnce(),
    ) -> anyhow::Result<()> {
        let client = SwarmClient::new(url)?;
        let mut serving = pin!(self.server.serve(listener, shutdown));
        tokio::select! {
            ended = &mut serving => return Ok(ended?),
            loaded = loaded(&client) => loaded?,
        }
        ready();
        Ok(serving.await?)
    }
}

/// Waits until the model is loaded.
async fn loaded(client: &SwarmClient) -> anyhow::Result<()> {
    // Hidden where stderr is no terminal.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    // The template is a constant; with one that is not valid, the default remains.
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        bar.set_style(style);
    }
    loop {
        let status = client.status().await?;
        let detail = status.engine_status_detail.unwrap_or_default();
        match status.engine_status {
            EngineStatus::Rolling => {
                bar.finish_and_clear();
                return Ok(());
            }
            EngineStatus::Offline if !detail.is_empty() => return Err(anyhow!(detail)),
            _ => bar.set_message(terminal::one_line(&detail)),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Listens on a port of this machine's loopback address that is free.
///
/// # Errors
/// Fails if there is none.
pub async fn listen_locally() -> io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", 0)).await
}
