//! Builds by programs that answer as cargo does.

use super::*;
use crate::server::code_sync::raw_zip::{as_file, engine_entries, raw_zip};
use crate::server::code_sync::snapshot::Unpacked;

struct World {
    dir: tempfile::TempDir,
    snapshot: Snapshot,
    builder: Builder,
}

/// A cargo that is this shell script; `$TARGET` is the target directory.
fn world(script: &str) -> World {
    let dir = tempfile::tempdir().unwrap();
    let cargo = dir.path().join("cargo");
    let script = format!("#!/bin/sh\nTARGET=\"$9\"\n{script}\n");
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let root = dir.path().join("code");
    let snapshot = Unpacked::new(&as_file(&raw_zip(&engine_entries())), &root)
        .unwrap()
        .store(&root)
        .unwrap();
    let builder = Builder {
        cargo,
        root,
        timeout: Duration::from_secs(20),
    };
    World { dir, snapshot, builder }
}

impl World {
    async fn build(&self) -> Result<PathBuf, BuildError> {
        self.build_observed(|_| {}).await
    }

    async fn build_observed(&self, observe: impl Fn(Event<'_>) + Sync) -> Result<PathBuf, BuildError> {
        loop {
            match self.builder.build(&self.snapshot, &observe).await {
                // Another test's fork may hold the script open for writing for a moment.
                Err(BuildError::Cargo(error)) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                Err(BuildError::Compile(reason)) if reason.contains("Text file busy") => {}
                outcome => return outcome,
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.snapshot.build_log()).unwrap()
    }
}

const BUILDS: &str = r#"mkdir -p "$TARGET/synced" && echo program > "$TARGET/synced/ajet-swarm"
printf '    Building [=>  ] 1/3: serde\r    Building [==> ] 2/3: ajet-swarm\r   Compiling ajet-swarm\n' >&2
echo '{"reason":"compiler-message","message":{"level":"warning","message":"unused","rendered":"warning: unused"}}'
echo "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"ajet-swarm\"},\"executable\":\"$TARGET/synced/ajet-swarm\"}"
echo built >> "$TARGET/../builds""#;

#[tokio::test]
async fn an_engine_is_built_once_with_progress_and_kept_with_its_snapshot() {
    let world = world(BUILDS);
    let (progress, lines) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let observe = |event: Event<'_>| match event {
        Event::Progress(at) => progress.lock().unwrap().push((at.done, at.total, at.running.clone())),
        Event::Line(line) => lines.lock().unwrap().push(line.to_owned()),
        Event::Error(rendered) => panic!("{rendered}"),
    };
    let engine = world.build_observed(observe).await.unwrap();
    assert_eq!(fs::read_to_string(&engine).unwrap(), "program\n");
    let expected = [(1, 3, "serde".to_owned()), (2, 3, "ajet-swarm".to_owned())];
    assert_eq!(progress.into_inner().unwrap(), expected);
    assert_eq!(lines.into_inner().unwrap(), ["Compiling ajet-swarm"]);
    assert!(world.log().contains("warning: unused\n"), "{}", world.log());
    assert!(
        world.builder.root.join("build/ajet/src/main.rs").is_file(),
        "built in one place"
    );
    assert_eq!(world.build().await.unwrap(), engine);
    let builds = fs::read_to_string(world.builder.root.join("build/builds")).unwrap();
    assert_eq!(builds.lines().count(), 1, "what is built is not built again");
}

#[tokio::test]
async fn failures_are_sentences_and_their_output_is_kept() {
    let compile = r#"echo '{"reason":"compiler-message","message":{"level":"error","message":"mismatched\n types",
"code":{"code":"E0308"},"spans":[{"file_name":"src/a.rs","line_start":7,"column_start":2,"is_primary":true}],
"rendered":"error[E0308]: mismatched types\n"}}' | tr -d '\n'; echo
echo 'error: could not compile `ajet-swarm`' >&2; exit 101"#;
    for (script, reason, logged) in [
        (
            compile,
            "error[E0308]: mismatched types (src/a.rs:7:2)",
            "error[E0308]: mismatched types",
        ),
        (
            "echo 'error: the lock file needs to be updated' >&2; echo '  but --locked was passed' >&2; exit 101",
            "error: the lock file needs to be updated but --locked was passed",
            "--locked was passed",
        ),
        ("exit 0", "builds no program named ajet-swarm", ""),
    ] {
        let world = world(script);
        let error = world.build().await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(world.log().contains(logged), "{}", world.log());
        assert!(!world.snapshot.engine().exists());
    }
}

#[tokio::test]
async fn a_build_that_takes_too_long_is_given_up() {
    let mut world = world("sleep 300");
    world.builder.timeout = Duration::from_millis(50);
    let error = world.build().await.unwrap_err().to_string();
    assert!(error.contains("within 50ms"), "{error}");
}

#[tokio::test]
async fn a_build_that_is_given_up_ends_with_all_that_it_started() {
    let world = world("sleep 300 & echo $! > \"${TARGET%/*}/child\"; wait");
    let file = world.builder.root.join("build/child");
    let child = async {
        loop {
            match fs::read_to_string(&file) {
                Ok(child) if child.ends_with('\n') => return child,
                _ => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let child = tokio::select! {
        child = child => child,
        built = world.build() => panic!("{built:?}"),
    };
    let stat = format!("/proc/{}/stat", child.trim());
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    // A dead process may be waited for by no one for a moment.
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(" Z ")) {
        assert!(std::time::Instant::now() < deadline, "the child still runs");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_build_has_no_secret_of_the_server_and_low_priority() {
    let world =
        world("echo \"error: token ${AJET_SWARM_TOKEN-none} priority $(ps -o ni= -p $$ | tr -d ' ')\" >&2; exit 1");
    let error = world.build().await.unwrap_err().to_string();
    assert!(error.contains("token none priority"), "{error}");
}

#[tokio::test]
async fn a_missing_or_broken_cargo_is_named() {
    let mut world = world("echo 'no toolchain installed' >&2; exit 1");
    let check = async |builder: &Builder| builder.check_cargo(world.dir.path()).await.unwrap_err().to_string();
    let broken = check(&world.builder).await;
    assert!(
        broken.contains("no toolchain installed") || broken.contains("busy"),
        "{broken}"
    );
    let missing = Builder {
        cargo: "/no/such/cargo".into(),
        ..world.builder.clone()
    };
    let missing = check(&missing).await;
    assert!(missing.contains("cannot run /no/such/cargo"), "{missing}");
    world.builder.cargo = "true".into();
    world.builder.check_cargo(world.dir.path()).await.unwrap();
}
