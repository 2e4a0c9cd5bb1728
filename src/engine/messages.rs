//! Snapshots of all messages of the engine's errors.

use std::io::ErrorKind;

use super::batch::journal::JournalError;
use super::batch::ledger::LedgerError;
use super::completions::CompletionError;
use super::endpoints::EndpointError;
use super::session::ChatError;
use super::storage::checkpoint::CheckpointError;
use super::storage::export::ExportError;
use super::storage::lock::LockError;
use crate::model::ModelError;

#[test]
fn chat_requests() {
    insta::assert_snapshot!(messages!(ChatError:
        ChatError::InvalidRequest { .. } => ChatError::InvalidRequest {
            param: Some("n".into()),
            message: "`n` must be 1 in a train episode, got 2".into(),
        },
        ChatError::ContextLengthExceeded { .. } => ChatError::ContextLengthExceeded { given: 5000, max_model_len: 4096 },
        ChatError::EpisodeNotFound(_) => ChatError::EpisodeNotFound("3f1c9a52".into()),
        ChatError::QueueFull(_) => ChatError::QueueFull("the engine has reached its limit of 8 queued requests".into()),
        ChatError::Unavailable(_) => ChatError::Unavailable("the weights are being updated; hint: try again".into()),
        ChatError::Sampling(_) => ChatError::Sampling("out of memory".into()),
    ));
}

#[test]
fn samplers_elsewhere() {
    insta::assert_snapshot!(
        "endpoints",
        messages!(EndpointError:
            EndpointError::Unreachable(_) => EndpointError::Unreachable("connection refused".into()),
            EndpointError::Silent(_) => EndpointError::Silent(120),
            EndpointError::Refused { .. } => EndpointError::Refused {
                status: 404,
                message: "no adapter `ajet.mine.1f.3` is loaded".into(),
            },
            EndpointError::Unexpected(_) => EndpointError::Unexpected("token \"a\" instead of its id".into()),
            EndpointError::Early => EndpointError::Early,
        )
    );
    insta::assert_snapshot!(
        "completions",
        messages!(CompletionError:
            CompletionError::NoAdapter(_) => CompletionError::NoAdapter("ajet.mine.1f.3".into()),
            CompletionError::Unsupported { .. } => CompletionError::Unsupported {
                field: "stream",
                required: "true",
            },
            CompletionError::Refused(_) => CompletionError::Refused("the prompt is empty".into()),
            CompletionError::Adapter(_) => CompletionError::Adapter("no such directory".into()),
            CompletionError::Stopped => CompletionError::Stopped,
        )
    );
}

#[test]
fn the_batch() {
    let full = || JournalError::Io {
        path: "/runs/a/journal.jsonl".into(),
        action: "write",
        source: ErrorKind::StorageFull.into(),
    };
    insta::assert_snapshot!(
        "journal",
        messages!(JournalError:
            JournalError::Io { .. } => full(),
            JournalError::Unreadable(_) => JournalError::Unreadable(serde_json::from_str::<u8>("x").unwrap_err()),
        )
    );
    insta::assert_snapshot!(
        "ledger",
        messages!(LedgerError:
            LedgerError::Journal(_) => LedgerError::Journal(full()),
            LedgerError::Updating { .. } => LedgerError::Updating { global_step: 3 },
            LedgerError::NotFull { .. } => LedgerError::NotFull { global_step: 3 },
        )
    );
}

#[test]
fn storage() {
    insta::assert_snapshot!(
        "checkpoints",
        messages!(CheckpointError:
            CheckpointError::Io { .. } => CheckpointError::Io {
                global_step: 3,
                dir: "/runs/a/checkpoints".into(),
                source: ErrorKind::PermissionDenied.into(),
            },
            CheckpointError::Content { .. } => CheckpointError::Content {
                global_step: 3,
                message: "no space left on device".into(),
            },
        )
    );
    insta::assert_snapshot!(
        "exports",
        messages!(ExportError:
            ExportError::Checkpoint(_) => ExportError::Checkpoint("no checkpoint found in /runs/a".into()),
            ExportError::TargetNotEmpty(_) => ExportError::TargetNotEmpty("/exports/a".into()),
            ExportError::NothingToMerge(_) => ExportError::NothingToMerge("/runs/a/checkpoints/global_step_3".into()),
            ExportError::Io { .. } => ExportError::Io {
                path: "/exports/a".into(),
                source: ErrorKind::PermissionDenied.into(),
            },
            ExportError::Model(_) => ExportError::Model(ModelError::Tensors("missing tensor `lm_head.weight`".into())),
        )
    );
    insta::assert_snapshot!(
        "locks",
        messages!(LockError:
            LockError::Held { .. } => LockError::Held {
                dir: "/runs/a".into(),
                holder: "pid 7 since 2026-01-02T03:04:05Z".into(),
            },
            LockError::Io { .. } => LockError::Io {
                path: "/runs/a/engine.lock".into(),
                source: ErrorKind::PermissionDenied.into(),
            },
        )
    );
}
