//! Snapshots of all messages of the server's errors.

use std::time::Duration;

use hyper::StatusCode;

use super::code_sync::error::{BuildError, CodeError};
use super::http::error::Error;
use super::http::tls::TlsError;
use super::http::token::TokenError;
use crate::protocol::swarm::EngineStatus;

#[test]
fn requests() {
    insta::assert_snapshot!(messages!(Error:
        Error::NotOffline(_) => Error::NotOffline(EngineStatus::Rolling),
        Error::NoConfig => Error::NoConfig,
        Error::Config(_) => Error::Config("unknown key `ajet.data.batch`".into()),
        Error::CannotStart(_) => Error::CannotStart("model not found: /models/none".into()),
        Error::NotRolling(_) => Error::NotRolling("[ENGINE.WEIGHT_SYNCING]".into()),
        Error::EngineRestarting => Error::EngineRestarting,
        Error::EpisodeNotFound(_) => Error::EpisodeNotFound("3f1c9a52".into()),
        Error::EpisodeLost { .. } => Error::EpisodeLost {
            uuid: "3f1c9a52".into(),
            why: "It was aborted.".into(),
        },
        Error::ForeignEpisode(_) => Error::ForeignEpisode("3f1c9a52".into()),
        Error::Invalid(_) => Error::Invalid("client_uuid must have at most 1024 bytes, got 1025".into()),
        Error::Field { .. } => Error::missing("messages"),
        Error::ResponseNotFound(_) => Error::ResponseNotFound("resp_1".into()),
        Error::Body(_) => Error::Body("not a JSON object".into()),
        Error::BodyTooLarge { .. } => Error::BodyTooLarge { limit: 1_048_576 },
        Error::BodyStalled { .. } => Error::BodyStalled { limit: Duration::from_secs(60) },
        Error::BodySlow { .. } => Error::BodySlow { rate: 65_536 },
        Error::TooManyCalls { .. } => Error::TooManyCalls { limit: 4096 },
        Error::EpisodeCalls { .. } => Error::EpisodeCalls {
            in_flight: 12,
            free: 64,
        },
        Error::Busy(_) => Error::Busy("the memory for request bodies is exhausted".into()),
        Error::EngineUnreachable(_) => Error::EngineUnreachable("it is not running".into()),
        Error::ModelNotReady(_) => Error::ModelNotReady("[ENGINE.BOOTING]: loading the weights 40%".into()),
        Error::BrokenOff(_) => Error::BrokenOff("the connection was closed".into()),
        Error::Engine { .. } => Error::Engine {
            status: StatusCode::BAD_REQUEST,
            message: "`n` must be 1 in a train episode, got 2".into(),
        },
        Error::NoCallYet => Error::NoCallYet,
        Error::NoExperiment => Error::NoExperiment,
        Error::NoRun(_) => Error::NoRun("no experiment \"b\" in /experiments; hint: GET /runs lists them".into()),
        Error::NoCheckpointFile(_) => Error::NoCheckpointFile("40/config.json".into()),
        Error::TokenMissing => Error::TokenMissing,
        Error::ForeignPage => Error::ForeignPage,
        Error::ForeignHost(_) => Error::ForeignHost("evil.example".into()),
        Error::CodeSyncOff => Error::CodeSyncOff,
        Error::CodeSyncNeedsToken => Error::CodeSyncNeedsToken,
        Error::KeyMissing => Error::KeyMissing,
        Error::KeyUnknown => Error::KeyUnknown,
        Error::EpisodeGone => Error::EpisodeGone,
        Error::NoSuchPath(_) => Error::NoSuchPath("/foo".into()),
        Error::MethodNotAllowed(_) => Error::MethodNotAllowed("GET /claim_episode".into()),
        Error::Internal(_) => Error::Internal("a task panicked".into()),
    ));
}

#[test]
fn code_archives() {
    let path = || "ajet/a.py".to_owned();
    insta::assert_snapshot!(messages!(CodeError:
        CodeError::Archive(_) => CodeError::Archive("no end record found".into()),
        CodeError::Empty => CodeError::Empty,
        CodeError::Path(_) => CodeError::Path("../a.py".into()),
        CodeError::Outside(_) => CodeError::Outside("README.md".into()),
        CodeError::Kind(_) => CodeError::Kind(path()),
        CodeError::Duplicate(_) => CodeError::Duplicate(path()),
        CodeError::Case(_, _) => CodeError::Case("ajet/A.rs".into(), "ajet/a.rs".into()),
        CodeError::Method(_) => CodeError::Method(path()),
        CodeError::Damaged { .. } => CodeError::Damaged {
            path: path(),
            reason: "size or checksum does not match".into(),
        },
        CodeError::Ratio { .. } => CodeError::Ratio {
            path: path(),
            ratio: 1000,
        },
        CodeError::TooMany(_) => CodeError::TooMany(50_001),
        CodeError::TooLarge => CodeError::TooLarge,
        CodeError::NotAnEngine(_) => CodeError::NotAnEngine("it has no ajet/Cargo.toml".into()),
        CodeError::NoCargo(_) => CodeError::NoCargo("cannot run cargo: No such file or directory".into()),
        CodeError::Io(_) => CodeError::Io(std::io::ErrorKind::StorageFull.into()),
    ));
}

#[test]
fn code_builds() {
    insta::assert_snapshot!(messages!(BuildError:
        BuildError::Cargo(_) => BuildError::Cargo(std::io::ErrorKind::NotFound.into()),
        BuildError::Compile(_) => BuildError::Compile("error[E0425]: cannot find value `x` (src/a.rs:3:5)".into()),
        BuildError::Timeout(_) => BuildError::Timeout(Duration::from_secs(3600)),
        BuildError::NoProgram => BuildError::NoProgram,
        BuildError::Io(_) => BuildError::Io(std::io::ErrorKind::StorageFull.into()),
    ));
}

#[test]
fn tokens_and_certificates() {
    insta::assert_snapshot!(
        "tokens",
        messages!(TokenError:
            TokenError::TooShort(_) => TokenError::TooShort(3),
            TokenError::Character(_) => TokenError::Character('/'),
        )
    );
    insta::assert_snapshot!(
        "certificates",
        messages!(TlsError:
            TlsError::File { .. } => TlsError::File {
                path: "key.pem".into(),
                expected: "a private key",
                reason: "no certificate found".into(),
            },
            TlsError::Pair(_) => TlsError::Pair(rustls::Error::General("unsupported key".into())),
        )
    );
}
