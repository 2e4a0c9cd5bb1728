//! Training code: who may send it, what is taken, and how an engine is started from it. cargo is a shell script here;
//! `scripts/code-sync-check.sh` has the real one.

use std::path::Path;

use crate::support::swarm::{Answer, ENOUGH_TASKS as METHOD, Swarm, answer, detail, quick};
use ajet_swarm::client::{ClientError, SwarmClient};
use ajet_swarm::server::{CodeAccess, CodeOptions, Options, Token};
use reqwest::Method;
use serde_json::{Value, json};

/// What the cargo of these tests does: it reads its orders from the snapshot's own source.
const CARGO: &str = r#"#!/bin/sh
[ "$1" = --version ] && exit 0
printf '   Compiling ajet-swarm v0.1.0\n    Building [=> ] 1/2: ajet-swarm\r' >&2
case "$(cat src/main.rs)" in
  *waits*) sleep 300 ;;
  *broken*) echo '{"reason":"compiler-message","message":{"level":"error","message":"cannot find value `x`","rendered":"error: cannot find value `x`, here and there"}}'; exit 101 ;;
esac
mkdir -p "$9/synced" && cp src/main.rs "$9/synced/ajet-swarm"
echo "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"ajet-swarm\"},\"executable\":\"$9/synced/ajet-swarm\"}"
"#;

fn zipped(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::write::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in entries {
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        zip.start_file(*name, options).unwrap();
        std::io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn engine(main: &str) -> Vec<u8> {
    zipped(&[
        ("ajet/Cargo.toml", "[package]\nname = \"ajet-swarm\"\n"),
        ("ajet/Cargo.lock", ""),
        ("ajet/src/main.rs", main),
    ])
}

struct World {
    dir: tempfile::TempDir,
    swarm: Swarm,
}

fn options(dir: &Path, access: CodeAccess) -> Options {
    let cargo = dir.join("cargo");
    std::fs::write(&cargo, CARGO).unwrap();
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    Options {
        code: CodeOptions {
            access,
            root: dir.join("code"),
            cargo,
            ..CodeOptions::default()
        },
        ..quick()
    }
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let swarm = Swarm::with(options(dir.path(), CodeAccess::Everyone)).await;
        Self { dir, swarm }
    }

    async fn send(&self, archive: Vec<u8>) -> Answer {
        loop {
            let sent = send(&self.swarm, archive.clone()).await;
            // Another test's fork may hold the script open for writing for a moment.
            if !sent.1["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains("Text file busy"))
            {
                return sent;
            }
        }
    }

    async fn sent(&self, archive: Vec<u8>) -> String {
        let (status, sent) = self.send(archive).await;
        assert_eq!((status, &sent["success"]), (200, &json!(true)), "{sent}");
        sent["temp_ajet_code_path"].as_str().unwrap().to_owned()
    }

    /// Starts an engine, and waits until it is offline; returns why it is.
    async fn failed_start(&self) -> String {
        let ajet = json!({"data": {"train_batch_size": 1}, "swarm_mode_sample_collection_method": METHOD});
        assert_eq!(self.swarm.sync(ajet).await.0, 200);
        self.swarm.post("/start_engine", json!({})).await;
        let status = self.swarm.until("ENGINE.OFFLINE").await;
        status["engine_status_detail"].as_str().unwrap_or_default().to_owned()
    }
}

async fn send(swarm: &Swarm, archive: Vec<u8>) -> Answer {
    let request = swarm.request(Method::POST, "/sync_train_code");
    answer(request.header("content-type", "application/zip").body(archive)).await
}

#[tokio::test]
async fn synced_code_is_built_and_run_until_the_built_in_engine_is_wanted_again() {
    let world = World::new().await;
    let path = world.sent(engine("first")).await;
    assert!(path.starts_with('/') && path.ends_with("/ajet"), "{path}");
    world.swarm.rolling(METHOD, 2, 2).await;
    let refused = world.send(engine("second")).await;
    assert_eq!(refused.0, 400);
    assert!(detail(&refused).contains("must be offline"), "{refused:?}");

    let (_, listed) = world.swarm.get("/sync_train_code").await;
    let snapshot = &listed["snapshots"][0];
    assert_eq!(
        (&snapshot["path"], &snapshot["files"]),
        (&json!(path), &json!(3)),
        "{listed}"
    );
    assert_eq!(
        (&snapshot["is_built"], &snapshot["is_selected"]),
        (&json!(true), &json!(true))
    );
    assert!(
        listed["build_log"].as_str().unwrap().contains("Compiling ajet-swarm"),
        "{listed}"
    );

    // Who sent it sees that it runs, without the server's own log.
    let (_, status) = world.swarm.get("/status").await;
    let using = format!("Using synced training code from {path}");
    let log = status["log"].as_array().unwrap();
    assert!(log.iter().any(|line| line["message"] == using), "{status}");

    world.swarm.post("/stop_engine", json!({})).await;
    let client = SwarmClient::new(&world.swarm.url).unwrap();
    assert!(client.deselect_train_code().await.unwrap().success);
    assert!(!client.synced_code().await.unwrap().snapshots[0].is_selected);
    world.swarm.rolling(METHOD, 2, 2).await;
    let programs = world.swarm.engines.record().programs;
    let built = Path::new(&path).with_file_name("engine");
    assert_eq!(programs, [Some(built.clone()), None]);
    assert_eq!(std::fs::read_to_string(built).unwrap(), "first");
}

#[tokio::test]
async fn a_build_that_fails_is_explained_and_the_next_one_is_run() {
    let world = World::new().await;
    world.sent(engine("broken")).await;
    let reason = world.failed_start().await;
    assert_eq!(
        reason,
        "the synced training code does not compile: error: cannot find value `x`"
    );
    let (_, listed) = world.swarm.get("/sync_train_code").await;
    assert!(
        listed["build_log"].as_str().unwrap().contains("here and there"),
        "{listed}"
    );
    let (_, logs) = world.swarm.get("/get_verbose_logs").await;
    assert_eq!(logs["entries"][0]["tag"], "build", "{logs}");

    // The next engine says another version of the contract.
    world.swarm.engines.behave(|engine| engine.contract_version = 4711);
    world.sent(engine("contract")).await;
    let reason = world.failed_start().await;
    assert!(
        reason.contains("version 4711") && reason.contains("same version as the server's"),
        "{reason}"
    );
    world.swarm.engines.behave(|engine| *engine = Default::default());

    world
        .swarm
        .engines
        .behave(|engine| engine.boot_error = Some("the advantage panicked".into()));
    world.sent(engine("panics")).await;
    assert!(world.failed_start().await.contains("the advantage panicked"));
    world.swarm.engines.behave(|engine| *engine = Default::default());

    world.sent(engine("right")).await;
    world.swarm.rolling(METHOD, 2, 2).await;
}

#[tokio::test]
async fn a_build_ends_with_its_boot_and_with_the_server() {
    let world = World::new().await;
    world.sent(engine("waits")).await;
    for _ in 0..2 {
        let ajet = json!({"data": {"train_batch_size": 1}, "swarm_mode_sample_collection_method": METHOD});
        assert_eq!(world.swarm.sync(ajet).await.0, 200);
        let (status, started) = world.swarm.post("/start_engine", json!({})).await;
        assert_eq!((status, &started["pid"]), (200, &Value::Null), "{started}");
        let building = async |swarm: &Swarm| {
            let status = swarm.status().await;
            let detail = status["engine_status_detail"].as_str().unwrap_or_default();
            detail.contains("1 of 2 crates").then_some(())
        };
        world.swarm.until_true("the build", building).await;
        let began = std::time::Instant::now();
        assert_eq!(world.swarm.post("/stop_engine", json!({})).await.0, 200);
        assert!(began.elapsed().as_secs() < 10, "cargo is killed");
        assert_eq!(world.swarm.status().await["engine_status"], "ENGINE.OFFLINE");
    }
    assert_eq!(world.swarm.engines.record().launches, 0);
    world.swarm.post("/start_engine", json!({})).await;
    world.swarm.shut_down().await;
}

#[tokio::test]
async fn a_restarted_server_goes_on_with_the_code_unless_it_is_not_to() {
    let mut world = World::new().await;
    world.sent(engine("kept")).await;
    world.swarm.shut_down().await;
    for (keep_selected, access, runs) in [
        (true, CodeAccess::WithToken, true),
        (true, CodeAccess::Off, false),
        (false, CodeAccess::Everyone, false),
        (true, CodeAccess::Everyone, false), // forgotten by the one before
    ] {
        let mut options = options(world.dir.path(), access);
        options.code.keep_selected = keep_selected;
        world.swarm = Swarm::with(options).await;
        world.swarm.rolling(METHOD, 2, 2).await;
        let programs = world.swarm.engines.record().programs;
        assert_eq!(programs[0].is_some(), runs, "{access:?} {keep_selected}");
        world.swarm.shut_down().await;
    }
}

#[tokio::test]
async fn code_needs_a_token_or_a_server_that_takes_it_from_everyone() {
    let dir = tempfile::tempdir().unwrap();
    for (access, said) in [
        (CodeAccess::WithToken, "--allow-code-sync"),
        (CodeAccess::Off, "does not accept training code"),
    ] {
        let swarm = Swarm::with(options(dir.path(), access)).await;
        let refused = send(&swarm, engine("x")).await;
        assert_eq!(refused.0, 403);
        assert!(detail(&refused).contains(said), "{refused:?}");
        let refused = answer(swarm.request(Method::DELETE, "/sync_train_code")).await;
        assert_eq!(refused.0, 403);
    }
    let options = Options {
        token: Some(Token::new("a-secret-token").unwrap()),
        ..options(dir.path(), CodeAccess::WithToken)
    };
    let swarm = Swarm::with(options).await;
    assert_eq!(send(&swarm, engine("x")).await.0, 401);
    let with_token = SwarmClient::new(&format!("{}/t/a-secret-token", swarm.url)).unwrap();
    loop {
        match with_token.sync_train_code(engine("x").into()).await {
            Err(ClientError::Refused { detail, .. }) if detail.contains("Text file busy") => {}
            sent => break assert!(sent.unwrap().success),
        }
    }
}

#[tokio::test]
async fn what_cannot_be_run_here_is_refused_and_never_a_success() {
    let world = World::new().await;
    for (archive, said) in [
        (b"no zip".to_vec(), "as a zip archive"),
        (zipped(&[("../../evil", "")]), "plain relative path"),
        (zipped(&[]), "no files"),
        (
            zipped(&[("ajet/__init__.py", ""), ("ajet/launcher.py", "")]),
            "only AgentJet's Python package",
        ),
        (zipped(&[("Cargo.toml", "")]), "outside of the top folder"),
    ] {
        let refused = world.send(archive).await;
        assert_eq!(refused.0, 400);
        assert!(detail(&refused).contains(said), "{refused:?}");
    }
    assert_eq!(std::fs::read_dir(world.dir.path().join("code")).unwrap().count(), 0);
    world.swarm.rolling(METHOD, 2, 2).await;
    assert_eq!(world.swarm.engines.record().programs, [None]);

    let mut without_cargo = options(world.dir.path(), CodeAccess::Everyone);
    without_cargo.code.cargo = "/no/such/cargo".into();
    let swarm = Swarm::with(without_cargo).await;
    let refused = send(&swarm, engine("x")).await;
    assert_eq!(refused.0, 400);
    assert!(detail(&refused).contains("install Rust"), "{refused:?}");
}
