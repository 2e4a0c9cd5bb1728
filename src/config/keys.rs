//! Which keys of `ajet:` and of the sections beside it exist: those that have an effect, from the schema, and those that
//! AgentJet and verl know and that have none here, from an embedded table with their defaults.

use std::sync::LazyLock;

use indexmap::IndexMap;

use super::node::Node;
use super::schema::Ajet;
use super::shape::{Key, Schema, Section, Shape};
use super::yaml;

/// Keys without effect, with AgentJet's swarm defaults.
const AGENTJET_DEFAULTS: &str = include_str!("../../config/agentjet_defaults.yaml");

/// What a path that the schema does not have is.
#[derive(Clone, Copy, Debug)]
pub enum Class<'a> {
    /// Holds other keys.
    Section,
    /// Is accepted without effect; its default.
    Accepted(&'a Node),
    /// Is not known.
    Unknown,
}

/// Every known key by its dotted path, such as `ajet.rollout.num_repeat`.
#[derive(Debug)]
pub struct Keys {
    /// The shape of `ajet:`.
    pub schema: Schema,
    /// Keys that have an effect, in the schema's order.
    pub used: IndexMap<String, Key>,
    /// Keys that have none, with their defaults.
    pub accepted: IndexMap<String, Node>,
    /// What the sections hold, in the schema's order; nothing for those that have no effect.
    pub sections: IndexMap<String, String>,
}

/// The table of keys, made once.
pub fn keys() -> &'static Keys {
    static KEYS: LazyLock<Keys> = LazyLock::new(Keys::new);
    &KEYS
}

impl Keys {
    fn new() -> Self {
        let schema = Schema::of::<Ajet>();
        let mut keys = Self {
            schema: schema.clone(),
            used: IndexMap::new(),
            accepted: IndexMap::new(),
            sections: IndexMap::new(),
        };
        if let Shape::Section(section) = &schema.root {
            keys.add_section("ajet", section);
        }
        // A test loads the table, so it parses.
        keys.add_accepted("", &yaml::parse(AGENTJET_DEFAULTS).unwrap_or_default());
        keys
    }

    fn add_section(&mut self, path: &str, section: &Section) {
        self.sections.insert(path.to_owned(), section.doc.clone());
        for (name, key) in &section.keys {
            let path = join(path, name);
            match &key.shape {
                Shape::Section(section) => self.add_section(&path, section),
                _ => {
                    self.used.insert(path, key.clone());
                }
            }
        }
    }

    fn add_accepted(&mut self, path: &str, node: &Node) {
        match node {
            Node::Section(entries) if !entries.is_empty() => {
                self.sections.entry(path.to_owned()).or_default();
                for (name, node) in entries {
                    self.add_accepted(&join(path, name), node);
                }
            }
            leaf => {
                self.accepted.insert(path.to_owned(), leaf.clone());
            }
        }
    }

    /// What `path`, which is no used key, is.
    pub fn class(&self, path: &str) -> Class<'_> {
        match self.accepted.get(path) {
            Some(default) => Class::Accepted(default),
            None if self.sections.contains_key(path) => Class::Section,
            None => Class::Unknown,
        }
    }

    /// Every known path.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let used = self.used.keys().chain(self.sections.keys());
        used.chain(self.accepted.keys()).map(String::as_str)
    }
}

/// `section.name`; just `name` at the top.
pub(super) fn join(section: &str, name: &str) -> String {
    match section {
        "" => name.to_owned(),
        section => format!("{section}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::nearest;

    #[test]
    fn used_and_accepted_keys_do_not_overlap() {
        let keys = keys();
        assert!(keys.accepted.len() > 500, "{}", keys.accepted.len());
        for path in keys.accepted.keys() {
            assert!(!keys.used.contains_key(path), "{path} has an effect");
            assert!(!keys.sections.contains_key(path), "{path} is a section");
        }
    }

    #[test]
    fn shapes_come_from_the_schema() {
        let kind = |path: &str| keys().used[path].shape.clone();
        let whole = |min, max| Shape::Whole { min, max };
        let number = |min, max| Shape::Number { min, max };
        assert_eq!(kind("ajet.experiment_name"), Shape::Text(None));
        assert_eq!(kind("ajet.rollout.num_repeat"), whole(Some(1), Some(100_000)));
        assert_eq!(kind("ajet.rollout.max_model_len"), whole(Some(1), Some(20_000_000)));
        assert_eq!(kind("ajet.trainer_common.save_freq"), whole(None, None));
        let lr = number(Some(0.0), Some(1000.0));
        assert_eq!(kind("ajet.trainer_common.optim.lr"), lr);
        assert_eq!(kind("ajet.trainer_common.use_kl_loss"), Shape::Flag);
        assert!(matches!(kind("ajet.lora.target_modules"), Shape::Either(shapes) if shapes.len() == 2));
        let betas = Shape::List {
            of: Box::new(number(None, None)),
            min: 2,
            max: Some(2),
        };
        assert_eq!(kind("ajet.trainer_common.optim.betas"), betas);
        assert!(matches!(kind("ajet.trainer_common.loss_agg_mode"), Shape::Choice(c) if c.len() == 3));
    }

    #[test]
    fn every_used_key_is_documented() {
        for (path, key) in &keys().used {
            assert!(!key.doc.is_empty(), "{path}");
        }
    }

    #[test]
    fn misspelt_keys_find_the_one_that_was_meant() {
        let cases = [
            ("ajet.rollout.num_repeats", Some("ajet.rollout.num_repeat")),
            ("ajet.rollout.train_batch_size", Some("ajet.data.train_batch_size")),
            ("ajet.trainer_common.lr", Some("ajet.trainer_common.optim.lr")),
            ("ajet.train_common", Some("ajet.trainer_common")),
            ("ajet.modle", Some("ajet.model")),
            (
                "ajet.swarm_mode_sample_colection_method",
                Some("ajet.swarm_mode_sample_collection_method"),
            ),
            ("ajet.zzz", None),
        ];
        for (given, meant) in cases {
            let known = keys().paths().filter(|known| known.starts_with("ajet"));
            assert_eq!(nearest(given, known), meant, "{given}");
        }
    }
}
