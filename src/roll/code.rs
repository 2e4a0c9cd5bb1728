//! The training code of a job: sent to its servers before their engines start.

use super::error::RollError;
use super::run::Run;
use crate::client::{ClientError, SwarmClient};
use crate::protocol::swarm::EngineStatus;

impl Run {
    /// Sends the checkout of `roll.sync_code`, where the job has one.
    pub async fn sync_code(&self) -> Result<(), RollError> {
        for member in self.fleet.members() {
            self.sync_code_to(&member.swarm).await?;
        }
        Ok(())
    }

    async fn sync_code_to(&self, swarm: &SwarmClient) -> Result<(), RollError> {
        let roll = &self.job.roll;
        let Some(dir) = &roll.sync_code else { return Ok(()) };
        let status = swarm.status().await?.engine_status;
        if status != EngineStatus::Offline && !roll.force_restart {
            return Err(RollError::Check(format!(
                "roll.sync_code: the engine is {status}, and its code can only be changed while it is offline\n\
                 hint: `roll.force_restart: true` stops it first; without `roll.sync_code` the job joins it"
            )));
        }
        let (sources, answer) = swarm.sync_train_code_from_dir(dir, roll.force_restart).await?;
        for file in &sources.left_out {
            self.progress.note(&format!(
                "warning: {file} is not sent; hint: `git add {file}` if it is training code"
            ));
        }
        self.progress.note(&answer.message);
        Ok(())
    }

    /// Shows what the compiler said where an engine of the job's own code did not start.
    pub async fn show_build(&self, error: &RollError) {
        if self.job.roll.sync_code.is_none() || !matches!(error, RollError::Swarm(ClientError::Boot { .. })) {
            return;
        }
        for member in self.fleet.members() {
            if let Ok(code) = member.swarm.synced_code().await {
                self.progress.note(code.build_log.trim_end());
            }
        }
    }
}
