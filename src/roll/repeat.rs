//! One of the episodes that a group needs, over all of its tries: each model's server takes one of them. Pure.

use super::joint_episode::Models;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Repeat {
    /// Number of earlier tries that failed, not counting those that a server lost.
    pub tried: u32,
    /// Tries that servers took: the models of these servers, and the try's first id.
    takes: Vec<(Models, String)>,
}

impl Repeat {
    /// Records that the servers of these models took the try with this id.
    pub fn took(&mut self, models: Models, uuid: &str) {
        if models != Models::default() {
            self.takes.push((models, uuid.to_owned()));
        }
    }

    /// Records that the server of this model does not have it after all.
    pub fn lost_by(&mut self, model: usize) {
        for (models, _) in &mut self.takes {
            *models = models.without(model);
        }
        self.takes.retain(|(models, _)| *models != Models::default());
    }

    /// Returns the models whose servers have taken it.
    pub fn taken_by(&self) -> Models {
        let models = self.takes.iter().map(|(models, _)| *models);
        models.fold(Models::default(), Models::and)
    }

    /// Returns the id by which the server of this model has taken it.
    pub fn id_at(&self, model: usize) -> Option<&str> {
        let take = self.takes.iter().find(|(models, _)| models.has(model));
        take.map(|(_, uuid)| uuid.as_str())
    }

    /// Returns whether one of its tries that a server took has this id.
    pub fn has_id(&self, uuid: &str) -> bool {
        self.takes.iter().any(|(_, taken)| taken == uuid)
    }

    /// Returns the id of the last try that a server took.
    pub fn last_id(&self) -> Option<&str> {
        self.takes.last().map(|(_, uuid)| uuid.as_str())
    }

    /// Returns whether nothing is known of it that another repeat of its group does not share.
    pub fn is_new(&self) -> bool {
        self.tried == 0 && self.takes.is_empty()
    }
}
