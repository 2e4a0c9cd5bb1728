//! `ajet-swarm job`: creates, checks and shows job files.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use super::job_init;
use crate::client::ServerUrl;
use crate::config::check_model_path;
use crate::counted::counted;
use crate::roll::job::Job;
use crate::roll::{TrainedModel, check, job_schema, tasks};
use crate::{note, say, terminal};

const EXAMPLES: &str = "\
Examples:
  ajet-swarm job init math.yaml     ask for tasks, agent, reward and model, and write the job
  ajet-swarm job init math.yaml --template    write a commented job
  ajet-swarm job init math.yaml --tasks openai/gsm8k --agent command --reward number_match --model Qwen/Qwen3-0.6B
  ajet-swarm job check math.yaml    report what is invalid
  ajet-swarm job show math.yaml     the configuration that the server would get
  ajet-swarm job schema > job.schema.json    completion in editors; the job's first line then is
      # yaml-language-server: $schema=job.schema.json";

/// Create, check or show a job file.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Action.
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// Create a job file to start from: of the parts that options or, at a terminal, answers name, or a commented one.
    Init(job_init::Args),
    /// Check a job file and read its tasks.
    Check(JobArgs),
    /// Print the complete training configuration that the server would receive.
    Show(JobArgs),
    /// Print the JSON Schema of job files, for completion and checks in editors.
    Schema,
}

#[derive(Clone, Debug, clap::Args)]
struct JobArgs {
    /// Path of the job file.
    path: PathBuf,
    /// Set a key of the job, such as `roll.steps=200`; can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs the action.
///
/// # Errors
/// Fails if the file already exists or is invalid.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Init(args) => job_init::run(&args)?,
        Action::Check(JobArgs { path, set }) => {
            let job = Job::load(&path, &set)?;
            let sets = tasks::read(&job.ajet.task_reader).await?;
            for warning in job.warnings.iter().chain(&sets.warnings) {
                note!("warning: {warning}");
            }
            let mut problems = check::problems(&job, &sets, usize::MAX, true);
            problems.extend(missing_models(&job));
            if !problems.is_empty() {
                bail!("{} cannot run:\n{}", path.display(), problems.join("\n"));
            }
            let (training, validation) = (sets.training.len(), sets.validation.len());
            say!(
                "{} is valid: {}, {}",
                path.display(),
                counted(training as u64, "training task"),
                counted(validation as u64, "evaluation task")
            );
        }
        Action::Show(JobArgs { path, set }) => print_yaml(&documents(&Job::load(&path, &set)?)),
        Action::Schema => terminal::print(&format!("{:#}\n", job_schema::job_schema())),
    }
    Ok(ExitCode::SUCCESS)
}

/// Why models cannot be there, where their servers are this machine and that can be told.
fn missing_models(job: &Job) -> Vec<String> {
    let is_local = |url: &str| ServerUrl::parse(url).is_ok_and(|url| url.is_local());
    let models = job.models().into_iter().filter(|model| is_local(model.swarm_url));
    models
        .filter_map(|model| check_model_path(&model.ajet.model.path).err())
        .collect()
}

/// What the servers would get: a document for each model.
fn documents(job: &Job) -> String {
    let document = |model: TrainedModel<'_>| match model.name {
        "" => model.document(),
        name => format!("# {name}\n{}", model.document()),
    };
    let documents: Vec<_> = job.models().into_iter().map(document).collect();
    documents.join("---\n")
}

/// Prints YAML: unchanged to a file or pipe, with control characters escaped on a terminal.
fn print_yaml(yaml: &str) {
    match std::io::stdout().is_terminal() {
        true => terminal::print(&terminal::printable(yaml)),
        false => terminal::print(yaml),
    }
}
