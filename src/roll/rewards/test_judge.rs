//! A group judge for the tests of what runs one.

pub use super::judge::fake::{FakeJudge, Reply};
use super::judge::{GROUP_PROMPT, GroupJudge, GroupPrompt, RUBRIC, Scale};
use super::scorer::{Kind, Scorer};
use crate::roll::template::Template;

/// A scorer that ranks as the judge says.
pub fn group_scorer(judge: &FakeJudge) -> Scorer {
    let template = |source| Template::new("roll.reward", source).unwrap();
    let prompt = GroupPrompt {
        system: None,
        prompt: template(GROUP_PROMPT),
        rubric: template(RUBRIC),
        scale: Scale::Rank,
        seed: 0,
    };
    Kind::GroupJudge(GroupJudge::new(judge.judge(), prompt)).into()
}
