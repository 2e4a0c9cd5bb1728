//! Ids of repositories.

use hf_hub::{Repo, RepoType};

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A model: `organisation/name`.
    Model,
    /// A data set: `organisation/name`, or a bare name such as `gsm8k`.
    Dataset,
}

/// A revision of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// `organisation/name`.
    pub name: String,
    /// Branch, tag or commit.
    pub revision: String,
    kind: Kind,
}

impl Repository {
    /// Reads `organisation/name` or `organisation/name@revision`; `None` for anything that cannot be a hub id.
    pub fn parse(id: &str, kind: Kind) -> Option<Self> {
        let (name, revision) = id.split_once('@').unwrap_or((id, "main"));
        let is_repository = match (name.split_once('/'), kind) {
            (Some((organisation, name)), _) => is_name(organisation) && is_name(name),
            (None, Kind::Dataset) => is_name(name),
            (None, Kind::Model) => false,
        };
        let is_revision = super::is_below(revision) && !revision.contains(char::is_whitespace);
        (is_repository && is_revision).then(|| Self {
            name: name.to_owned(),
            revision: revision.to_owned(),
            kind,
        })
    }

    /// As the hub client names it.
    pub(super) fn to_hf(&self) -> Repo {
        let kind = match self.kind {
            Kind::Model => RepoType::Model,
            Kind::Dataset => RepoType::Dataset,
        };
        Repo::with_revision(self.name.clone(), kind, self.revision.clone())
    }
}

fn is_name(part: &str) -> bool {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_are_ids() {
        for (id, kind, expected) in [
            (
                "Qwen/Qwen2.5-0.5B-Instruct",
                Kind::Model,
                Some(("Qwen/Qwen2.5-0.5B-Instruct", "main")),
            ),
            ("a/b@refs/pr/1", Kind::Model, Some(("a/b", "refs/pr/1"))),
            ("model", Kind::Model, None),
            ("gsm8k", Kind::Dataset, Some(("gsm8k", "main"))),
            ("gsm8k@v1", Kind::Dataset, Some(("gsm8k", "v1"))),
            ("/models/a", Kind::Dataset, None),
            ("./a", Kind::Dataset, None),
            ("../a/b", Kind::Dataset, None),
            ("a/b/c", Kind::Dataset, None),
            ("a/", Kind::Dataset, None),
            ("a b/c", Kind::Dataset, None),
            ("a/b@", Kind::Dataset, None),
            ("a/b@../../c", Kind::Dataset, None),
            ("builtin:x", Kind::Dataset, None),
            ("", Kind::Dataset, None),
        ] {
            let repository = Repository::parse(id, kind);
            let found = repository
                .as_ref()
                .map(|known| (known.name.as_str(), known.revision.as_str()));
            assert_eq!(found, expected, "{id}");
        }
    }
}
