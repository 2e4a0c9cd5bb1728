//! Jobs of `roll` on a test's server.

use std::path::Path;

use super::swarm::Swarm;
use ajet_swarm::protocol::swarm::WorkflowOutput;
use ajet_swarm::roll::job::Job;
use ajet_swarm::roll::report::End;
use ajet_swarm::roll::{Interrupt, Options, RollError, run};
use serde_json::{Value, json};

/// Batches of `tasks` tasks of `repeats` episodes, of a small generated task set.
pub fn ajet(tasks: u64, repeats: u64, method: &str) -> Value {
    json!({
        "data": {"train_batch_size": tasks},
        "rollout": {"num_repeat": repeats},
        "swarm_mode_sample_collection_method": method,
        "task_reader": {"type": "reverse_text", "reverse_text": {"tasks": 12, "validation_tasks": 3}},
    })
}

/// A job on this server; `roll` is completed with the echo agent and a reward that differs between tasks.
pub fn job(swarm: &Swarm, ajet: Value, mut roll: Value) -> Job {
    roll["swarm_url"] = swarm.url.clone().into();
    roll["auto_start_swarm_server"] = false.into();
    if roll["agent"].is_null() {
        roll["agent"] = json!({"type": "chat", "user": "{{ metadata.text }}"});
    }
    if roll["reward"].is_null() {
        roll["reward"] = json!({"type": "similarity", "answer": "{{ metadata.answer }}"});
    }
    let yaml = format!("{}roll: {roll}\n", swarm.yaml(ajet));
    Job::parse(Path::new("job.yaml"), &yaml).unwrap()
}

pub async fn run_to_end(job: Job) -> Result<End, RollError> {
    run(job, Options::default(), Interrupt::default()).await
}

/// Output of an episode that has this reward.
pub fn reward(reward: impl Into<Value>) -> WorkflowOutput {
    WorkflowOutput {
        reward: reward.into(),
        ..WorkflowOutput::default()
    }
}
