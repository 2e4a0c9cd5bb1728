//! The command that starts an engine as several ranks, such as `mpirun -np {ranks}`.

use crate::config::schema::Ajet;

/// Replaced in the command by the number of ranks.
const RANKS: &str = "{ranks}";

/// What ranks of this machine can compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// GPUs that this build can use.
    pub gpus: usize,
    /// Physical cores.
    pub cores: usize,
}

impl Devices {
    /// Returns how many ranks have a device of their own with this `ajet.engine.device`; at least 1.
    fn ranks_on(self, device: &str) -> usize {
        let count = match device {
            "auto" | "cuda" if self.gpus > 0 => self.gpus,
            "auto" | "cpu" => self.cores,
            _ => 1, // the one that it names
        };
        count.max(1)
    }
}

/// A launcher's command, split into words, and the devices of its machine.
#[derive(Clone, Debug)]
pub struct RankCommand {
    words: Vec<String>,
    devices: Devices,
}

impl RankCommand {
    /// Creates a command from its words; `{ranks}` in them stands for the number of ranks.
    pub fn new(words: Vec<String>, devices: Devices) -> Self {
        Self { words, devices }
    }

    /// Returns the words for an engine of this configuration: `n_gpus_per_node` ranks on each of `nnodes` machines, but
    /// on each at most as many as this one has devices.
    pub fn words(&self, config: &Ajet) -> Vec<String> {
        let trainer = &config.trainer_common;
        let devices = self.devices.ranks_on(&config.engine.device);
        let ranks = trainer.n_gpus_per_node.clamp(1, devices) * trainer.nnodes;
        let ranks = ranks.to_string();
        self.words.iter().map(|word| word.replace(RANKS, &ranks)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOX: Devices = Devices { gpus: 4, cores: 32 };
    const CPUS: Devices = Devices { gpus: 0, cores: 2 };

    #[test]
    fn the_number_of_ranks_is_configured_and_bounded_by_the_devices() {
        for (devices, device, per_node, nnodes, ranks) in [
            (BOX, "auto", 4, 1, "4"),
            (BOX, "auto", 8, 1, "4"),
            (BOX, "cuda", 2, 3, "6"),
            (BOX, "cuda:1", 4, 1, "1"),
            (BOX, "cpu", 8, 1, "8"),
            (BOX, "metal", 2, 1, "1"),
            (CPUS, "auto", 8, 2, "4"),
            (CPUS, "cuda", 8, 1, "1"),
            (CPUS, "auto", 0, 1, "1"),
            (Devices::default(), "cpu", 2, 1, "1"),
        ] {
            let mut config = Ajet::default();
            config.engine.device = device.into();
            config.trainer_common.n_gpus_per_node = per_node;
            config.trainer_common.nnodes = nnodes;
            let command = RankCommand::new(vec!["srun".into(), "--ntasks={ranks}".into()], devices);
            let expected = ["srun".to_owned(), format!("--ntasks={ranks}")];
            assert_eq!(
                command.words(&config),
                expected,
                "{devices:?} {device} {per_node} × {nnodes}"
            );
        }
    }

    #[test]
    fn a_number_of_ones_own_stays() {
        let command = RankCommand::new(vec!["mpirun".into(), "-np".into(), "3".into()], BOX);
        assert_eq!(command.words(&Ajet::default()), ["mpirun", "-np", "3"]);
    }
}
