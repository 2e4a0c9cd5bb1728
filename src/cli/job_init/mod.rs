//! `ajet-swarm job init`: writes a job file and, where its agent is a program, a working agent in Python.

mod questions;

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::note;

/// The commented job that is written without options.
const TEMPLATE: &str = include_str!("../../../config/jobs/template.yaml");
const COMMAND: &str = include_str!("../../../config/agents/command.py");
const WORKER: &str = include_str!("../../../config/agents/worker.py");
/// Name of the agent's file.
const AGENT_FILE: &str = "agent.py";

/// What to write.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Path of the new file.
    #[arg(default_value = "job.yaml")]
    path: PathBuf,
    /// Tasks: a file or directory of CSV, JSON or Parquet, a data set of the hub, `arithmetic` or `reverse_text`.
    #[arg(long, value_name = "TASKS")]
    tasks: Option<String>,
    /// Agent. `command` and `worker` come with a program, agent.py.
    #[arg(long, value_name = "TYPE")]
    agent: Option<Agent>,
    /// Reward.
    #[arg(long, value_name = "TYPE")]
    reward: Option<Reward>,
    /// Model: a Hugging Face directory, a `.gguf` file, a hub id, or builtin:tiny.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Write the commented job and ask nothing, as without a terminal.
    #[arg(long, conflicts_with_all = ["tasks", "agent", "reward", "model"])]
    template: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Agent {
    /// The model answers a prompt.
    #[default]
    Chat,
    /// A program, started for each episode.
    Command,
    /// A program that stays and runs one episode after the other.
    Worker,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Reward {
    /// The same text.
    #[default]
    ExactMatch,
    /// The same number.
    NumberMatch,
    /// The answer occurs in the output.
    Contains,
    /// Normalised edit distance.
    Similarity,
    /// The reward that the agent returns.
    FromAgent,
    /// Another model's score.
    LlmJudge,
}

/// Writes the files. Asks for the parts at a terminal where no option names one.
///
/// # Errors
/// Fails if a file exists already or cannot be written, or the questions are not answered; nothing is overwritten.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.names_no_part() && !args.template && io::stdin().is_terminal() && io::stderr().is_terminal() {
        refuse_existing(&args.path)?;
        let asked = questions::ask(args, &mut io::stdin().lock(), &mut io::stderr())?;
        return write(&asked.context("no job was written: the questions were not answered")?);
    }
    write(args)
}

impl Args {
    fn names_no_part(&self) -> bool {
        self.tasks.is_none() && self.agent.is_none() && self.reward.is_none() && self.model.is_none()
    }
}

fn write(args: &Args) -> anyhow::Result<()> {
    let job = match args.names_no_part() {
        true => TEMPLATE.to_owned(),
        false => job(args),
    };
    let program = match args.agent.unwrap_or_default() {
        Agent::Chat => None,
        Agent::Command => Some(COMMAND),
        Agent::Worker => Some(WORKER),
    };
    let agent = args.path.with_file_name(AGENT_FILE);
    if program.is_some() {
        refuse_existing(&agent)?;
    }
    create(&args.path, &job)?;
    if let Some(program) = program {
        create(&agent, program)?;
        note!("wrote {}, the agent", agent.display());
    }
    let path = args.path.display();
    note!("wrote {path}; run it with `ajet-swarm roll {path}`");
    Ok(())
}

fn refuse_existing(path: &Path) -> anyhow::Result<()> {
    match path.exists() {
        true => bail!(
            "{} already exists\nhint: remove it first, or choose another directory",
            path.display()
        ),
        false => Ok(()),
    }
}

fn create(path: &Path, text: &str) -> anyhow::Result<()> {
    let created = std::fs::File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    match created {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
            "{} already exists\nhint: choose another file name, or remove the file first",
            path.display()
        ),
        created => created.with_context(|| format!("cannot write {}", path.display())),
    }
}

/// Returns the job of these options.
fn job(args: &Args) -> String {
    let name = args
        .path
        .file_stem()
        .map_or("job".into(), |stem| stem.to_string_lossy());
    let model = args.model.as_deref().unwrap_or("builtin:tiny");
    let lora = match model.starts_with("builtin:") {
        true => "",
        false => "\n  lora: { lora_rank: 16, lora_alpha: 32 }",
    };
    format!(
        "\
# Run it with `ajet-swarm roll`; `ajet-swarm job check` says what is wrong, docs/configuration.md has every key.
ajet:
  experiment_name: {name}
  model: {{ path: {model} }}
  data: {{ train_batch_size: 8, max_prompt_length: 512, max_response_length: 256 }}
  rollout: {{ num_repeat: 8 }}                # episodes of each task, whose rewards are compared{lora}
  trainer_common: {{ optim: {{ lr: 3.0e-4 }}, save_freq: 10 }}
  task_reader:
{tasks}
roll:
  steps: 50                                 # weight updates
  eval: {{ every: 10 }}
{agent}
{reward}
",
        name = quoted(&name),
        model = quoted(model),
        tasks = tasks(args.tasks.as_deref().unwrap_or("reverse_text")),
        agent = agent(args.agent.unwrap_or_default()),
        reward = reward(args.reward.unwrap_or_default()),
    )
}

fn tasks(given: &str) -> String {
    match given {
        "arithmetic" | "reverse_text" => format!(
            "    type: {given}\n    {given}: {{ tasks: 1000, validation_tasks: 100, min_length: 4, max_length: 5 }}"
        ),
        path => {
            // One split is divided, since files and many data sets have no other.
            let path = quoted(path);
            format!(
                "    type: huggingface_dat_repo\n    huggingface_dat_repo:\n      dataset_path: {path}\n      \
                 training_split: \"train[:90%]\"\n      validation_split: \"train[90%:]\"\n    \
                 # Fields by templates over the row; without them, the row is the metadata.\n    \
                 # columns: {{ main_query: \"{{{{ question }}}}\", answer: \"{{{{ answer }}}}\" }}"
            )
        }
    }
}

fn agent(agent: Agent) -> &'static str {
    match agent {
        Agent::Chat => "  agent: { type: chat, user: \"{{ main_query }}\" }",
        Agent::Command => "  agent: { type: command, argv: [python3, agent.py], timeout: 120 }",
        Agent::Worker => "  agent: { type: worker, argv: [python3, agent.py], workers: 8 }",
    }
}

fn reward(reward: Reward) -> String {
    let with_answer = |kind: &str| format!("  reward: {{ type: {kind}, answer: \"{{{{ metadata.answer }}}}\" }}");
    match reward {
        Reward::ExactMatch => with_answer("exact_match"),
        Reward::NumberMatch => with_answer("number_match"),
        Reward::Contains => with_answer("contains"),
        Reward::Similarity => with_answer("similarity"),
        Reward::FromAgent => "  reward: { type: from_agent }".into(),
        Reward::LlmJudge => "  \
  reward:
    type: llm_judge
    judge: { model: gpt-4.1-mini, base_url: https://api.openai.com/v1, api_key_env: OPENAI_API_KEY }
    prompt: |
      Question: {{ main_query }}
      Answer: {{ output }}
      Is it right? End with a line `Score: <0 to 10>`."
            .into(),
    }
}

/// Returns text as a YAML string in double quotes, which JSON's are.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::roll::job::Job;

    fn args(path: &Path) -> Args {
        Args {
            path: path.to_owned(),
            ..Args::default()
        }
    }

    #[test]
    fn the_template_is_a_job() {
        Job::parse(Path::new("template.yaml"), TEMPLATE).unwrap();
    }

    #[test]
    fn every_choice_is_a_job() {
        for agent in Agent::value_variants() {
            for reward in Reward::value_variants() {
                for (tasks, model) in [
                    ("arithmetic", "builtin:tiny"),
                    ("reverse_text", "Qwen/Qwen3-0.6B"),
                    ("my \"data\": 1.csv", "/models/a: b"),
                    ("openai/gsm8k", "x.gguf"),
                ] {
                    let args = Args {
                        tasks: Some(tasks.into()),
                        agent: Some(*agent),
                        reward: Some(*reward),
                        model: Some(model.into()),
                        ..args(Path::new("my job: x.yaml"))
                    };
                    let text = job(&args);
                    let job =
                        Job::parse(Path::new("job.yaml"), &text).unwrap_or_else(|error| panic!("{error}: {text}"));
                    assert_eq!(job.ajet.model.path, model);
                    assert_eq!(job.ajet.experiment_name, "my job: x");
                }
            }
        }
    }

    #[test]
    fn files_are_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.yaml");
        let command = Args {
            agent: Some(Agent::Command),
            ..args(&path)
        };
        write(&command).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join(AGENT_FILE)).unwrap(), COMMAND);
        let again = write(&command).unwrap_err().to_string();
        assert!(again.contains("agent.py already exists"), "{again}");
        let plain = write(&args(&path)).unwrap_err().to_string();
        assert!(plain.contains("job.yaml already exists"), "{plain}");
        write(&args(&dir.path().join("plain.yaml"))).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join("plain.yaml")).unwrap(),
            TEMPLATE
        );
    }
}
