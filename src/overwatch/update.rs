//! What the dashboard receives from a source, and what it asks for.

use crate::protocol::status::{EpisodeDetail, Episodes, Status, StepMetrics};
use crate::protocol::swarm::EpisodeType;

/// News from a source. All text in it is printable.
#[derive(Clone, Debug)]
pub enum Update {
    /// The server's state.
    Status(Box<Observed>),
    /// The server does not answer, for this reason.
    Lost(String),
    /// Metrics of all steps from `since` on.
    History {
        /// Experiment.
        run: String,
        /// First requested step: later steps that are known and not in `steps` are gone.
        since: u64,
        /// Steps.
        steps: Vec<StepMetrics>,
    },
    /// A page of finished episodes.
    Episodes(Query, Result<Episodes, String>),
    /// An episode or call to read.
    Transcript(Subject, Result<Box<EpisodeDetail>, String>),
}

/// A state with what it lacks.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The state.
    pub status: Status,
    /// What the server does not tell, if it has no status feed.
    pub missing: Option<String>,
}

/// What the user looks at beside the state, and so wants to be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Finished episodes.
    pub episodes: Option<Query>,
    /// An episode, and whether with its tokens.
    pub transcript: Option<(Subject, bool)>,
}

/// A page of finished episodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    /// Id of the task; all if there is none.
    pub task: Option<String>,
    /// Train or eval episodes, or both.
    pub kind: Kind,
    /// Order.
    pub sort: Sort,
    /// Episodes to skip.
    pub offset: usize,
}

/// Which finished episodes are listed: rewards of training and of evaluations are not to be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Those that train.
    #[default]
    Train,
    /// Those of evaluations.
    Eval,
    /// Both.
    All,
}

impl Kind {
    /// Returns the next one, in the order of the key `e`.
    pub fn next(self) -> Self {
        match self {
            Self::Train => Self::Eval,
            Self::Eval => Self::All,
            Self::All => Self::Train,
        }
    }

    /// Returns the type that is listed; `None` for both.
    pub fn only(self) -> Option<EpisodeType> {
        match self {
            Self::Train => Some(EpisodeType::Train),
            Self::Eval => Some(EpisodeType::Eval),
            Self::All => None,
        }
    }
}

/// Number of episodes of a page.
pub const PAGE: usize = 500;

/// Order of finished episodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Newest first.
    #[default]
    Newest,
    /// Lowest reward first.
    Worst,
    /// Highest reward first.
    Best,
    /// Most tokens first.
    Tokens,
    /// Most LLM calls first.
    Calls,
}

impl Sort {
    /// All of them, in the order of the key `s`.
    pub const ALL: [Self; 5] = [Self::Newest, Self::Worst, Self::Best, Self::Tokens, Self::Calls];

    /// Returns the value of the query's `sort`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Newest => "-ended",
            Self::Worst => "reward",
            Self::Best => "-reward",
            Self::Tokens => "-tokens",
            Self::Calls => "-calls",
        }
    }

    /// Returns words for a title.
    pub fn words(self) -> &'static str {
        match self {
            Self::Newest => "newest first",
            Self::Worst => "lowest reward first",
            Self::Best => "highest reward first",
            Self::Tokens => "most tokens first",
            Self::Calls => "most calls first",
        }
    }
}

/// What is read in the transcript.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Subject {
    /// The latest LLM call of any agent.
    #[default]
    Latest,
    /// The finished train episode of an update with the lowest or highest reward.
    Extreme(Extreme, u64),
    /// An episode by its id.
    Episode(String),
}

/// An end of the rewards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extreme {
    /// The lowest reward.
    Worst,
    /// The highest reward.
    Best,
}

impl Extreme {
    /// Returns a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Worst => "worst",
            Self::Best => "best",
        }
    }

    /// Returns the order in which it comes first.
    pub fn sort(self) -> Sort {
        match self {
            Self::Worst => Sort::Worst,
            Self::Best => Sort::Best,
        }
    }
}
