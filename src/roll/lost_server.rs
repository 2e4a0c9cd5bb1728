//! A swarm server that does not answer any more is waited for; one that was restarted gets the job again.

use std::time::{Duration, Instant};

use super::error::RollError;
use super::run::Run;
use crate::client::{ClientError, Started};
use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer, SERVER_ENDS};

/// Between two tries to reach a server.
const PAUSE: Duration = Duration::from_secs(1);

impl Run {
    /// Status of the engine, which is started again where the server was restarted without it.
    ///
    /// # Errors
    /// The engine went offline, or the server cannot be reached.
    pub async fn online(&self) -> Result<EngineStatusAnswer, RollError> {
        let status = self.swarm.status().await?;
        if status.engine_status != EngineStatus::Offline {
            return Ok(status);
        }
        if ends(&status) {
            return Err(RollError::Swarm(ClientError::Unreachable {
                url: self.swarm.url().to_string(),
                reason: SERVER_ENDS.into(),
            }));
        }
        // A server knows no directory before its first start.
        let was_restarted = status.engine_status_detail.is_none() && self.swarm.experiment_dir().await?.is_none();
        if !was_restarted {
            return Err(RollError::Swarm(ClientError::WentOffline {
                url: self.swarm.url().to_string(),
                detail: status.engine_status_detail.unwrap_or_default(),
            }));
        }
        self.progress.note(&format!(
            "the swarm server at {} was restarted; starting its engine again with this job's configuration",
            self.swarm.url()
        ));
        if self.bring_up(false).await? == Some(Started::Fresh) {
            self.progress
                .note("the engine is up again and continues with its last checkpoint");
        }
        Ok(self.swarm.status().await?)
    }

    /// Whether the server answers, and not only until it has shut down.
    async fn is_back(&self) -> bool {
        self.swarm.health().await.is_ok() && self.swarm.status().await.is_ok_and(|status| !ends(&status))
    }

    /// Waits for a server that cannot be reached, as long as the job allows.
    ///
    /// # Errors
    /// `lost`, after that time.
    pub async fn wait_for_server(&self, lost: ClientError) -> Result<(), RollError> {
        let patience = Duration::from_secs_f64(self.job.roll.wait_for_server);
        // A server of our own does not come back.
        if self.own_server || patience.is_zero() {
            return Err(lost.into());
        }
        self.progress.note(&format!(
            "{}; waiting for it for up to {} s",
            lost.to_string().lines().next().unwrap_or_default(),
            patience.as_secs()
        ));
        let began = Instant::now();
        while !self.is_back().await {
            if began.elapsed() >= patience {
                return Err(lost.into());
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = self.interrupt.wait() => return Err(lost.into()),
            }
        }
        self.progress.note(&format!(
            "the swarm server at {} answers again after {:.0} s",
            self.swarm.url(),
            began.elapsed().as_secs_f64()
        ));
        Ok(())
    }
}

/// Whether the engine is offline because its server ends.
fn ends(status: &EngineStatusAnswer) -> bool {
    status.engine_status == EngineStatus::Offline && status.engine_status_detail.as_deref() == Some(SERVER_ENDS)
}
