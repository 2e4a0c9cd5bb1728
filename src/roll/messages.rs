//! Snapshots of all messages of `roll`'s errors.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use super::agents::{AgentError, ServiceError};
use super::error::RollError;
use super::job::JobError;
use super::own_server::ServerError;
use super::process::ProgramError;
use super::rewards::{JudgeError, RewardError, SetupError};
use super::tasks::TaskError;
use super::template::TemplateError;
use crate::client::ClientError;
use crate::config::Problem;

fn template() -> TemplateError {
    TemplateError {
        path: "roll.agent.user".into(),
        reason: "`metadata.qestion` is undefined (line 1 of the template)".into(),
    }
}

fn exit() -> ProgramError {
    ProgramError::Exit {
        program: "python".into(),
        status: ExitStatus::from_raw(1 << 8),
        stdout: String::new(),
        stderr: "ModuleNotFoundError: No module named 'openai'\n".into(),
    }
}

fn client() -> ClientError {
    ClientError::Claim("episode_type must be \"train\" or \"eval\"".into())
}

#[test]
fn jobs() {
    insta::assert_snapshot!(messages!(JobError:
        JobError::File { .. } => JobError::File {
            path: "job.yaml".into(),
            reason: ErrorKind::NotFound.into(),
        },
        JobError::NoRoll(_) => JobError::NoRoll("job.yaml".into()),
        JobError::Setting { .. } => JobError::Setting {
            given: "steps".into(),
            reason: "not of the form KEY=VALUE".into(),
        },
        JobError::Invalid { .. } => JobError::Invalid {
            path: "job.yaml".into(),
            reason: crate::config::Error::Problems(vec![Problem::new(
                "roll.stepz",
                "unknown key; did you mean `roll.steps`?",
            )]),
        },
    ));
}

#[test]
fn tasks() {
    insta::assert_snapshot!(messages!(TaskError:
        TaskError::Kind { .. } => TaskError::Kind { given: "json".into(), known: &["jsonl_dataset_file", "command"] },
        TaskError::Missing { .. } => TaskError::Missing {
            key: "ajet.task_reader.jsonl_dataset_file.training.file_path",
            what: "the file of training tasks",
        },
        TaskError::File { .. } => TaskError::File { path: "tasks.jsonl".into(), reason: ErrorKind::NotFound.into() },
        TaskError::Damaged { .. } => TaskError::Damaged { path: "a.parquet".into(), reason: "EOF".into() },
        TaskError::NotJsonLines(_) => TaskError::NotJsonLines("a.parquet".into()),
        TaskError::Field { .. } => TaskError::Field { path: "a.json".into(), field: "rows".into() },
        TaskError::Line { .. } => TaskError::Line { path: "a.jsonl".into(), line: 3, reason: "not JSON".into() },
        TaskError::Row { .. } => TaskError::Row {
            path: "a.parquet".into(),
            row: 3,
            reason: "the task id is empty".into(),
        },
        TaskError::Empty { .. } => TaskError::Empty { what: "a.jsonl".into() },
        TaskError::FilteredOut { .. } => TaskError::FilteredOut {
            what: "a.jsonl".into(),
            rows: 100,
            filter: "level > 9".into(),
        },
        TaskError::NoDataset { .. } => TaskError::NoDataset {
            path: "openai/gsm9k".into(),
            file: "list of files".into(),
            reason: "status 404".into(),
        },
        TaskError::NoSuchPath(_) => TaskError::NoSuchPath("data/gsm8k/x".into()),
        TaskError::Layout { .. } => TaskError::Layout {
            path: "data".into(),
            reason: "no file of a known format".into(),
        },
        TaskError::Config { .. } => TaskError::Config {
            path: "openai/gsm8k".into(),
            given: "mian".into(),
            known: vec!["main".into(), "socratic".into()],
        },
        TaskError::NoConfig { .. } => TaskError::NoConfig {
            path: "openai/gsm8k".into(),
            known: vec!["main".into(), "socratic".into()],
        },
        TaskError::Split { .. } => TaskError::Split {
            path: "openai/gsm8k".into(),
            key: "training_split",
            given: "trian".into(),
            known: vec!["train".into(), "test".into()],
        },
        TaskError::Template(_) => TaskError::Template(template()),
        TaskError::Value { .. } => TaskError::Value {
            key: "ajet.task_reader.huggingface_dat_repo.delimiter",
            given: ";;".into(),
            allowed: "one ASCII character",
        },
        TaskError::Program(_) => TaskError::Program(exit()),
        TaskError::Printed { .. } => TaskError::Printed {
            program: "python".into(),
            line: 2,
            reason: "not JSON".into(),
        },
        TaskError::Thread(_) => TaskError::Thread("task 3 panicked".into()),
        TaskError::TooMany { .. } => TaskError::TooMany {
            kind: "arithmetic",
            asked: 101,
            exist: 100.0,
            min_length: 1,
            max_length: 1,
        },
        TaskError::Lengths { .. } => TaskError::Lengths {
            kind: "arithmetic",
            min_length: 5,
            max_length: 3,
            most: 15,
        },
    ));
}

#[test]
fn agents() {
    insta::assert_snapshot!(
        "agents",
        messages!(AgentError:
            AgentError::Model(_) => AgentError::Model(client()),
            AgentError::Template(_) => AgentError::Template(template()),
            AgentError::Program(_) => AgentError::Program(exit()),
            AgentError::Service(_) => AgentError::Service(ServiceError::Timeout {
                url: "http://127.0.0.1:8000/run".into(),
                seconds: 600.0,
            }),
            AgentError::Tool { .. } => AgentError::Tool { name: "search".into(), reason: exit() },
            AgentError::Files(_) => AgentError::Files(ErrorKind::StorageFull.into()),
            AgentError::Answer(_) => AgentError::Answer("no content: the worker closed its standard output".into()),
            AgentError::Reward(_) => AgentError::Reward("NaN".into()),
        )
    );
    insta::assert_snapshot!(
        "agent_services",
        messages!(ServiceError:
            ServiceError::Unreachable { .. } => ServiceError::Unreachable {
                url: "http://127.0.0.1:8000/run".into(),
                reason: "connection refused".into(),
            },
            ServiceError::Timeout { .. } => ServiceError::Timeout {
                url: "http://127.0.0.1:8000/run".into(),
                seconds: 600.0,
            },
            ServiceError::Status { .. } => ServiceError::Status {
                url: "http://127.0.0.1:8000/run".into(),
                status: 500,
                body: "Internal Server Error".into(),
            },
        )
    );
}

#[test]
fn programs() {
    let program = || "python".to_owned();
    insta::assert_snapshot!(messages!(ProgramError:
        ProgramError::Start { .. } => ProgramError::Start { program: program(), reason: ErrorKind::NotFound.into() },
        ProgramError::Timeout { .. } => ProgramError::Timeout {
            program: program(),
            seconds: 600.0,
            stderr: String::new(),
        },
        ProgramError::Memory { .. } => ProgramError::Memory {
            program: program(),
            used: 5000,
            limit: 4096,
            stderr: String::new(),
        },
        ProgramError::Output { .. } => ProgramError::Output { program: program(), limit: 16, stderr: String::new() },
        ProgramError::Exit { .. } => exit(),
    ));
}

#[test]
fn rewards() {
    insta::assert_snapshot!(
        "rewards",
        messages!(RewardError:
            RewardError::Template(_) => RewardError::Template(template()),
            RewardError::Program(_) => RewardError::Program(Arc::new(exit())),
            RewardError::Missing => RewardError::Missing,
            RewardError::NoNumber(_) => RewardError::NoNumber("twelve".into()),
            RewardError::NoAnswer => RewardError::NoAnswer,
            RewardError::Output(_) => RewardError::Output("good".into()),
            RewardError::Value(_) => RewardError::Value("\"good\"".into()),
            RewardError::NotFinite(_) => RewardError::NotFinite(f64::NAN),
            RewardError::Judge(_) => RewardError::Judge(JudgeError::NoKey { variable: "JUDGE_API_KEY".into() }),
            RewardError::Alone => RewardError::Alone,
            RewardError::GivenUp => RewardError::GivenUp,
            RewardError::Part { .. } => RewardError::Part {
                name: "format".into(),
                error: Box::new(RewardError::Missing),
            },
        )
    );
    insta::assert_snapshot!(
        "reward_setup",
        messages!(SetupError:
            SetupError::Config(_) => SetupError::Config(Problem::new("roll.reward.pattern", "unclosed group")),
            SetupError::Environment(_) => SetupError::Environment(RewardError::NoAnswer),
        )
    );
    let url = || "https://judge.example/v1".to_owned();
    insta::assert_snapshot!(
        "judges",
        messages!(JudgeError:
            JudgeError::NoKey { .. } => JudgeError::NoKey { variable: "JUDGE_API_KEY".into() },
            JudgeError::Setup(_) => JudgeError::Setup("no root certificates found".into()),
            JudgeError::Refused { .. } => JudgeError::Refused {
                url: url(),
                status: 401,
                detail: "Incorrect API key provided".into(),
            },
            JudgeError::NoScore { .. } => JudgeError::NoScore {
                url: url(),
                tries: 4,
                reason: "its answer \"good\" contains no score".into(),
            },
        )
    );
}

#[tokio::test]
async fn runs() {
    let cancelled = tokio::spawn(std::future::pending::<()>());
    cancelled.abort();
    let cancelled = cancelled.await.unwrap_err();
    let id = cancelled.id().to_string();
    let text = messages!(RollError:
        RollError::File(_) => RollError::File(JobError::NoRoll("job.yaml".into())),
        RollError::Tasks(_) => RollError::Tasks(TaskError::Empty { what: "a.jsonl".into() }),
        RollError::NoValidation => RollError::NoValidation,
        RollError::Unfit(_) => RollError::Unfit(vec!["a batch needs 32 tasks, but there are 12".into()]),
        RollError::Swarm(_) => RollError::Swarm(client()),
        RollError::Server(_) => RollError::Server(ServerError::Silent("/tmp/start.log".into())),
        RollError::Reward(_) => RollError::Reward(SetupError::Environment(RewardError::NoAnswer)),
        RollError::Job { .. } => RollError::Job {
            task_id: "7".into(),
            detail: template().to_string(),
        },
        RollError::TooManyFailures { .. } => RollError::TooManyFailures {
            failed: 40,
            episodes: 64,
            reasons: "40 agent_error".into(),
            allowed: 0.5,
            detail: exit().to_string(),
        },
        RollError::AllFailed { .. } => RollError::AllFailed { episodes: 8, detail: "\"sh\" ended with code 1".into() },
        RollError::NothingTrained { .. } => RollError::NothingTrained {
            updates: 3,
            reason: "all rewards of a group are equal".into(),
        },
        RollError::NothingToLearn { .. } => RollError::NothingToLearn {
            updates: 20,
            reason: "all rewards of a group are equal".into(),
        },
        RollError::NoUpdate { .. } => RollError::NoUpdate { reason: "it has 3 of 4 tasks".into() },
        RollError::Differs { .. } => RollError::Differs {
            there: "the engine trains with another configuration".into(),
            differences: "\n  ajet.model.path: builtin:tiny, here /models/a".into(),
            hint: "stop it with `ajet-swarm stop`",
        },
        RollError::UnequalBatches { .. } => RollError::UnequalBatches {
            first: "http://box-1:10086".into(),
            first_batch: (16, 8),
            other: "http://box-2:10086".into(),
            other_batch: (16, 4),
        },
        RollError::Busy(_) => RollError::Busy("http://gpu-box:10086".into()),
        RollError::Check(_) => RollError::Check("cannot run \"agent.py\": permission denied".into()),
        RollError::Lost(_) => RollError::Lost(cancelled),
    );
    // The task's id differs from run to run.
    insta::assert_snapshot!("runs", text.replace(&format!("task {id}"), "task 3"));
}

#[test]
fn servers() {
    insta::assert_snapshot!(messages!(ServerError:
        ServerError::Start(_) => ServerError::Start(ErrorKind::PermissionDenied.into()),
        ServerError::Ended { .. } => ServerError::Ended {
            log: "/tmp/start.log".into(),
            tail: "error: port 10086 is in use by another program".into(),
        },
        ServerError::Silent(_) => ServerError::Silent("/tmp/start.log".into()),
    ));
}
