//! The training code of a job: sent before the engine starts.

use super::error::RollError;
use super::run::Run;
use crate::client::ClientError;
use crate::protocol::swarm::EngineStatus;

impl Run {
    /// Sends the checkout of `roll.sync_code`, where the job has one.
    pub async fn sync_code(&self) -> Result<(), RollError> {
        let roll = &self.job.roll;
        let Some(dir) = &roll.sync_code else { return Ok(()) };
        let status = self.swarm.status().await?.engine_status;
        if status != EngineStatus::Offline && !roll.force_restart {
            return Err(RollError::Check(format!(
                "roll.sync_code: the engine is {status}, and its code can only be changed while it is offline\n\
                 hint: `roll.force_restart: true` stops it first; without `roll.sync_code` the job joins it"
            )));
        }
        let (sources, answer) = self.swarm.sync_train_code_from_dir(dir, roll.force_restart).await?;
        for file in &sources.left_out {
            self.progress
                .note(&format!("warning: {file} is not sent; hint: `git add {file}` if it is training code"));
        }
        self.progress.note(&answer.message);
        Ok(())
    }

    /// Shows what the compiler said where the engine of a job's own code did not start.
    pub async fn show_build(&self, error: &RollError) {
        let is_boot = matches!(error, RollError::Swarm(ClientError::Boot { .. }));
        if self.job.roll.sync_code.is_some()
            && is_boot
            && let Ok(code) = self.swarm.synced_code().await
        {
            self.progress.note(code.build_log.trim_end());
        }
    }
}
