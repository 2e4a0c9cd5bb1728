//! `ajet-swarm chat`: a conversation with a model in the terminal.

mod conversation;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::model_server::{ModelArgs, ModelServer, listen_locally};
use super::server_url::with_token;
use crate::client::{ClientError, ModelApi};
use crate::protocol::openai::ChatRequest;
use crate::server::{Hosts, Token};
use crate::{note, terminal};
use conversation::{Conversation, HELP, Input};

/// Exit code after Ctrl-C at the prompt.
const INTERRUPTED: u8 = 130;

/// Talk to a trained model.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
CHECKPOINT is a checkpoint or adapter, an experiment directory for its newest checkpoint, an exported model, or anything \
else that ajet.model.path takes. /help lists the commands at the prompt.

From a pipe, each line is a question of its own, and only the answers are printed.

Examples:
  ajet-swarm chat saved_experiments/quickstart
  ajet-swarm chat my-adapter --system 'Answer with a number.' --temperature 0
  ajet-swarm chat my-model < questions.txt > answers.txt
  ajet-swarm chat --api http://127.0.0.1:8000/v1    a model that `ajet-swarm serve` or another program serves")]
pub struct Args {
    /// Checkpoint or model to talk to.
    #[arg(value_name = "CHECKPOINT", required_unless_present = "api")]
    checkpoint: Option<String>,
    /// Base URL of a model API to talk to instead.
    #[arg(long, value_name = "URL", conflicts_with = "checkpoint")]
    api: Option<String>,
    /// Environment variable with the key of that API.
    #[arg(long, value_name = "NAME", requires = "api")]
    api_key_env: Option<String>,
    /// Model name to ask that API for.
    #[arg(long, value_name = "NAME", requires = "api")]
    api_model: Option<String>,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Sampling temperature; 0 is greedy.
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Maximum number of tokens of an answer.
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u64>,
    #[command(flatten)]
    model: ModelArgs,
}

/// Talks until the input ends.
///
/// # Errors
/// Fails if the model cannot be loaded or reached.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match (&args.api, &args.checkpoint) {
        (None, Some(checkpoint)) => with_checkpoint(&args, checkpoint).await,
        (api, _) => {
            let key = match &args.api_key_env {
                Some(name) => std::env::var(name).with_context(|| format!("cannot read the API key in {name}"))?,
                None => "none".into(),
            };
            let model = ModelApi::new(api.as_deref().unwrap_or_default(), &key)?;
            talk(&args, &model).await
        }
    }
}

/// Serves a checkpoint on a port of this machine that needs a key known only here, and talks to it.
async fn with_checkpoint(args: &Args, checkpoint: &str) -> anyhow::Result<ExitCode> {
    let (token, key) = Token::random();
    let server = ModelServer::new(checkpoint, &args.model, Some(token), Hosts::default(), None)?;
    let listener = listen_locally()
        .await
        .context("cannot listen on a port of this machine")?;
    let url = format!("http://{}", listener.local_addr()?);
    let model = ModelApi::new(&format!("{url}/v1"), &key)?;
    let done = CancellationToken::new();
    let (ready, loaded) = oneshot::channel();
    let talking = async {
        // A server that ends before reports why.
        let outcome = match loaded.await {
            Ok(()) => talk(args, &model).await,
            Err(_) => Ok(ExitCode::FAILURE),
        };
        done.cancel();
        outcome
    };
    let own_url = with_token(&url, Some(&key));
    let on_ready = || {
        let _ = ready.send(()); // received below
    };
    let (served, talked) = tokio::join!(server.serve(listener, &own_url, done.cancelled(), on_ready), talking);
    served?;
    talked
}

async fn talk(args: &Args, model: &ModelApi) -> anyhow::Result<ExitCode> {
    let interrupts = signal(SignalKind::interrupt())?;
    let mut chat = Chat {
        args,
        model,
        interrupts,
        conversation: Conversation::new(args.system.clone()),
    };
    match std::io::stdin().is_terminal() {
        true => chat.converse().await,
        false => chat.answer_lines().await,
    }
}

/// How an answer ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The model ended it.
    Complete,
    /// Ctrl-C did.
    Interrupted,
}

/// A conversation in progress.
struct Chat<'a> {
    args: &'a Args,
    model: &'a ModelApi,
    interrupts: Signal,
    conversation: Conversation,
}

impl Chat<'_> {
    /// Answers each line of a pipe as a question of its own.
    async fn answer_lines(&mut self) -> anyhow::Result<ExitCode> {
        let mut lines = lines()?;
        while let Some(line) = lines.recv().await {
            let question = line?;
            if question.trim().is_empty() {
                continue;
            }
            self.conversation.reset();
            self.conversation.ask(question);
            if self.answer().await? == Ended::Interrupted {
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Talks on a terminal.
    async fn converse(&mut self) -> anyhow::Result<ExitCode> {
        note!("/help lists the commands");
        let mut lines = lines()?;
        loop {
            terminal::print("> ");
            let line = tokio::select! {
                line = lines.recv() => line,
                _ = self.interrupts.recv() => {
                    terminal::print("\n");
                    return Ok(ExitCode::from(INTERRUPTED));
                }
            };
            let Some(line) = line else {
                terminal::print("\n");
                return Ok(ExitCode::SUCCESS);
            };
            match Input::read(&line?) {
                Input::Message(text) => {
                    self.conversation.ask(text);
                    // A refused question is no reason to lose the conversation.
                    if let Err(error) = self.answer().await {
                        note!("error: {error}");
                    }
                }
                Input::Reset => self.conversation.reset(),
                Input::System(text) => self.conversation = Conversation::new(Some(text)),
                Input::Help => note!("{HELP}"),
                Input::Exit => return Ok(ExitCode::SUCCESS),
                Input::Unknown(name) => note!("unknown command {name}; hint: /help lists the commands"),
                Input::Nothing => {}
            }
        }
    }

    /// Prints the model's answer as it is sampled, until its end or Ctrl-C, and adds it to the conversation.
    async fn answer(&mut self) -> Result<Ended, ClientError> {
        let request = ChatRequest {
            model: self.args.api_model.clone(),
            messages: self.conversation.messages(),
            temperature: self.args.temperature,
            max_tokens: self.args.max_tokens,
            ..ChatRequest::default()
        };
        let mut text = String::new();
        let answered = tokio::select! {
            answered = print_answer(self.model, &request, &mut text) => answered.map(|()| Ended::Complete),
            _ = self.interrupts.recv() => Ok(Ended::Interrupted),
        };
        terminal::print("\n");
        self.conversation.answered(text);
        answered
    }
}

/// Prints an answer as it is sampled. `text` receives it.
async fn print_answer(model: &ModelApi, request: &ChatRequest, text: &mut String) -> Result<(), ClientError> {
    let mut chunks = model.stream(request).await?;
    while let Some(chunk) = chunks.next().await? {
        for choice in chunk.choices {
            let content = choice.delta.content.unwrap_or_default();
            terminal::print(&terminal::printable(&content));
            text.push_str(&content);
        }
    }
    Ok(())
}

/// Reads standard input on a thread of its own, which may wait for a line forever.
fn lines() -> std::io::Result<mpsc::Receiver<std::io::Result<String>>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        for line in std::io::stdin().lines() {
            if sender.blocking_send(line).is_err() {
                return; // the conversation has ended
            }
        }
    })?;
    Ok(receiver)
}
