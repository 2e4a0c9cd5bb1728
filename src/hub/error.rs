//! Errors of the hub.

/// A file of the hub that is not available.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct HubError {
    /// The requested file.
    pub file: String,
    /// Why it is not available.
    pub reason: Reason,
}

/// Why a file of the hub is not available.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The environment forbids network access.
    #[error("HF_HUB_OFFLINE is set, so nothing is downloaded")]
    Offline,
    /// The hub cannot be reached, or refuses.
    #[error("{0}")]
    Client(String),
    /// The hub names a revision by something else than a commit.
    #[error("the hub reports the revision {0:?}, which is not a commit")]
    NotACommit(String),
    /// The file's path is not below the repository.
    #[error("its name leads out of the repository")]
    OutsideRepository,
    /// The hub client would ask for another file.
    #[error("the hub client cannot fetch names with {0:?}")]
    UnsupportedCharacter(char),
    /// The client fetched a file of another revision.
    #[error("the repository changed during the download; run this again")]
    Changed,
    /// The repository does not have the file.
    #[error("the repository has no such file")]
    Missing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        insta::assert_snapshot!(messages!(Reason:
            Reason::Offline => Reason::Offline,
            Reason::Client(_) => Reason::Client("request error: status code 404".into()),
            Reason::NotACommit(_) => Reason::NotACommit("../main".into()),
            Reason::OutsideRepository => Reason::OutsideRepository,
            Reason::UnsupportedCharacter(_) => Reason::UnsupportedCharacter('#'),
            Reason::Changed => Reason::Changed,
            Reason::Missing => Reason::Missing,
        ));
    }
}
