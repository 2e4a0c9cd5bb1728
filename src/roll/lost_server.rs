//! Waits for a swarm server that no longer answers, and gives a restarted one the job again.

use std::time::{Duration, Instant};

use super::error::RollError;
use super::fleet::{JointStatus, Member};
use super::run::Run;
use crate::client::{ClientError, Started};
use crate::protocol::swarm::{EngineStatus, EngineStatusAnswer, SERVER_ENDS};

/// Time between attempts to reach a server.
const PAUSE: Duration = Duration::from_secs(1);

impl Run {
    /// What the engines are at, each of which is started again where its server was restarted without it.
    ///
    /// # Errors
    /// An engine went offline, or a server cannot be reached.
    pub async fn online(&self) -> Result<JointStatus, RollError> {
        let mut statuses = vec![];
        for member in self.fleet.members() {
            statuses.push(self.member_online(member).await?);
        }
        let (status, back) = self.fleet.see(&statuses);
        for member in back {
            self.progress.note(&format!(
                "the engine at {} is back at an earlier step, with its last checkpoint",
                member.swarm.url()
            ));
        }
        Ok(status)
    }

    async fn member_online(&self, member: &Member) -> Result<EngineStatusAnswer, RollError> {
        let status = member.swarm.status().await?;
        if status.engine_status != EngineStatus::Offline {
            return Ok(status);
        }
        let url = member.swarm.url().to_string();
        if ends(&status) {
            return Err(RollError::Swarm(ClientError::Unreachable {
                url,
                reason: SERVER_ENDS.into(),
            }));
        }
        // A server knows no directory before its first start.
        let was_restarted = status.engine_status_detail.is_none() && member.swarm.experiment_dir().await?.is_none();
        if !was_restarted {
            return Err(RollError::Swarm(ClientError::WentOffline {
                url,
                detail: status.engine_status_detail.unwrap_or_default(),
            }));
        }
        self.progress.note(&format!(
            "the swarm server at {url} was restarted; starting its engine again with this job's configuration"
        ));
        if self.bring_up(member, false).await? == Some(Started::Fresh) {
            self.progress
                .note("the engine is up again and continues with its last checkpoint");
        }
        Ok(member.swarm.status().await?)
    }

    /// Whether all servers answer, and not only until they have shut down.
    async fn are_back(&self) -> bool {
        for Member { swarm, .. } in self.fleet.members() {
            let is_back = swarm.health().await.is_ok() && swarm.status().await.is_ok_and(|status| !ends(&status));
            if !is_back {
                return false;
            }
        }
        true
    }

    /// Whether a server that was started for this run is gone. It does not come back.
    async fn has_lost_own_server(&self) -> bool {
        for place in &self.own_servers {
            if self.fleet.members()[*place].swarm.health().await.is_err() {
                return true;
            }
        }
        false
    }

    /// Waits for a server that cannot be reached, as long as the job allows.
    ///
    /// # Errors
    /// `lost`, after that time.
    pub async fn wait_for_server(&self, lost: ClientError) -> Result<(), RollError> {
        let patience = Duration::from_secs_f64(self.job.roll.wait_for_server);
        if patience.is_zero() || self.has_lost_own_server().await {
            return Err(lost.into());
        }
        self.progress.note(&format!(
            "{}; waiting for it for up to {} s",
            lost.to_string().lines().next().unwrap_or_default(),
            patience.as_secs()
        ));
        let began = Instant::now();
        while !self.are_back().await {
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
            self.fleet.urls(),
            began.elapsed().as_secs_f64()
        ));
        Ok(())
    }
}

/// Returns whether the engine is offline because its server is shutting down.
fn ends(status: &EngineStatusAnswer) -> bool {
    status.engine_status == EngineStatus::Offline && status.engine_status_detail.as_deref() == Some(SERVER_ENDS)
}
