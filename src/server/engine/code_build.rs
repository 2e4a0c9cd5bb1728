//! The build of synced training code, as a part of the engine's boot: its progress is the boot's detail, its output goes
//! to the log, and it ends when the boot is stopped.

use std::path::PathBuf;
use std::time::Instant;

use crate::server::code_sync::{Event, Snapshot};
use crate::server::shared::Shared;

/// Tag of the compiler's errors among the verbose logs.
const TAG: &str = "build";

/// Builds the engine of a snapshot while this generation boots; returns its program.
///
/// # Errors
///
/// Returns why there is no engine, as a sentence.
pub async fn build(shared: &Shared, code: &Snapshot, generation: u64) -> Result<PathBuf, String> {
    let using = format!("Using synced training code from {}", code.code_path().display());
    tracing::info!("[start_engine] {using}");
    shared.show("start_engine", &using);
    let began = Instant::now();
    let detail = |detail: String| shared.with(|core, _| core.boot_detail(generation, detail));
    detail("building the synced training code".into());
    let observe = |event: Event<'_>| match event {
        Event::Progress(progress) => detail(format!(
            "building the synced training code: {} of {} crates in {} s{}",
            progress.done,
            progress.total,
            began.elapsed().as_secs(),
            if progress.running.is_empty() {
                String::new()
            } else {
                format!(" ({})", progress.running)
            }
        )),
        Event::Line(line) => tracing::info!("build: {line}"),
        Event::Error(rendered) => {
            tracing::error!("build: {rendered}");
            let now = shared.now();
            shared.verbose_logs().push(TAG.into(), rendered.to_owned(), now);
        }
    };
    let built = tokio::select! {
        built = shared.code.build(code, observe) => built.map_err(|error| error.to_string()),
        () = stopped(shared, generation) => Err("the engine was stopped during its build".into()),
    };
    if built.is_ok() {
        tracing::info!(
            "built the synced training code in {:.1} s",
            began.elapsed().as_secs_f64()
        );
        detail("starting the engine of the synced training code".into());
    }
    built
}

/// Completes when this generation does not boot any more.
async fn stopped(shared: &Shared, generation: u64) {
    loop {
        // Subscribe before reading the state, so that a change right after it is not missed.
        let changed = shared.state_changed.notified();
        if !shared.with(|core, _| core.boots(generation)) {
            return;
        }
        changed.await;
    }
}
