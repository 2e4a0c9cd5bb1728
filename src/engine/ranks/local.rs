//! What a rank may use of its machine, which it shares with its neighbours.

use crate::collective::Collective;
use crate::config::schema::Ajet;
use crate::model::device;
use crate::model::kernels::Pool;

/// A rank among those of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Number on this machine, from 0.
    pub rank: usize,
    /// Ranks on this machine.
    pub size: usize,
}

impl Local {
    /// Finds the ranks that share this machine. Every rank calls this at the same time.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    pub fn find(collective: &dyn Collective) -> crate::collective::Result<Self> {
        let hosts = collective.all_gather(host().as_bytes())?;
        Ok(Self::among(&hosts, collective.rank()))
    }

    fn among(hosts: &[Vec<u8>], rank: usize) -> Self {
        let here = |other: &&Vec<u8>| **other == hosts[rank];
        Self {
            rank: hosts[..rank].iter().filter(here).count(),
            size: hosts.iter().filter(here).count(),
        }
    }

    /// Sets what the configuration leaves open: the rank's own GPU, or its share of the cores. A launcher that binds
    /// ranks to cores has made the shares already.
    pub fn adapt(self, config: &mut Ajet) {
        if cfg!(feature = "cuda") && ["auto", "cuda"].contains(&config.engine.device.as_str()) {
            let gpus = device::gpu_count();
            if gpus > 0 {
                config.engine.device = format!("cuda:{}", self.rank % gpus);
            }
        }
        let share = (Pool::physical_cores() / self.size).clamp(1, Pool::logical_cpus());
        config.engine.threads.get_or_insert(share);
    }
}

/// Name of this machine, empty where the system has none.
pub fn host() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_those_with_the_same_host() {
        let hosts = ["a", "b", "a", "a"].map(|host| host.as_bytes().to_vec());
        let found: Vec<(usize, usize)> = (0..4)
            .map(|rank| Local::among(&hosts, rank))
            .map(|l| (l.rank, l.size))
            .collect();
        assert_eq!(found, [(0, 3), (0, 1), (1, 3), (2, 3)]);
    }
}
