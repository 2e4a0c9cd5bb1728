//! Runs a plan: one run at a time on each server, until all have ended.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::code;
use super::error::ResearchError;
use super::events;
use super::plan::{Plan, RunSpec};
use super::record::{Records, RunState, write};
use super::report::Report;
use super::roll_process::Roll;
use crate::client::{SwarmClient, with_token};
use crate::roll::Interrupt;
use crate::terminal::note;

/// What the command line adds to a plan.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plan's file.
    pub plan: PathBuf,
    /// Directory of the results.
    pub out: PathBuf,
    /// `ajet-swarm`, to run jobs with.
    pub program: PathBuf,
    /// Access token of the plan's servers, if they require one.
    pub token: Option<String>,
}

/// How one run ended.
enum Ending {
    /// It exited; with the end of its stderr if it failed.
    Own(Option<String>),
    /// Its time is over.
    TimeIsOver,
    /// The user stopped the research.
    Interrupted,
}

struct Research<'a> {
    plan: &'a Plan,
    options: &'a Options,
    interrupt: &'a Interrupt,
    /// The variants' copies of the code.
    codes: Vec<PathBuf>,
    runs: Vec<RunSpec>,
    records: Mutex<Records>,
    /// Index of the next run.
    next: Mutex<usize>,
}

/// Runs the rest of a plan and writes `report.md` and `report.json`; also when the user stops it.
///
/// # Errors
/// The plan is wrong, its directory is in use or cannot be written, or a patch does not apply. A run that fails is no
/// error; it is tried again the next time.
pub async fn run(options: &Options, interrupt: &Interrupt) -> Result<Report, ResearchError> {
    let plan = Plan::load(&options.plan)?;
    let runs = plan.runs(&name_of(&options.plan));
    let records = Records::open(&options.out, &runs)?;
    let research = Research {
        codes: code::copies(&plan, records.dir())?,
        plan: &plan,
        options,
        interrupt,
        runs,
        records: Mutex::new(records),
        next: Mutex::new(0),
    };
    let servers: Vec<Option<&str>> = match plan.servers.is_empty() {
        true => vec![None],
        false => plan.servers.iter().map(|server| Some(server.as_str())).collect(),
    };
    try_join_all(servers.into_iter().map(|server| research.work(server))).await?;
    research.report()
}

/// Returns the name of a plan: its file's, as far as it fits an experiment's.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect()
}

impl Research<'_> {
    /// Runs what no other server runs, until nothing is left.
    async fn work(&self, server: Option<&str>) -> Result<(), ResearchError> {
        while let Some(number) = self.take() {
            if self.records().runs[number].state == RunState::Done {
                continue;
            }
            self.one(number, server).await?;
            self.report()?;
            if self.interrupt.happened() {
                break;
            }
        }
        Ok(())
    }

    fn take(&self) -> Option<usize> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let number = (*next < self.runs.len()).then_some(*next)?;
        *next += 1;
        Some(number)
    }

    async fn one(&self, number: usize, server: Option<&str>) -> Result<(), ResearchError> {
        let (name, left) = self.begin(number)?;
        note(&format!("run {name} ({} of {})", number + 1, self.runs.len()));
        let began = Instant::now();
        let ending = self.roll(number, server, left).await?;
        let mut records = self.records();
        let record = &mut records.runs[number];
        record.seconds += began.elapsed().as_secs_f64();
        let has_values = record.final_value(self.plan).is_some();
        record.state = match ending {
            Ending::Interrupted => RunState::Waiting,
            Ending::Own(None) | Ending::TimeIsOver if has_values => RunState::Done,
            Ending::Own(None) | Ending::TimeIsOver => RunState::Failed(format!("no value of {}", self.plan.metric)),
            Ending::Own(Some(reason)) => RunState::Failed(reason),
        };
        if let RunState::Failed(reason) = &record.state {
            note(&format!("run {name} failed: {reason}"));
        }
        records.save()
    }

    /// Notes another attempt; returns the run's name and the time that is left for it.
    fn begin(&self, number: usize) -> Result<(String, Option<Duration>), ResearchError> {
        let mut records = self.records();
        let record = &mut records.runs[number];
        record.attempts += 1;
        let left = self
            .plan
            .seconds
            .map(|seconds| Duration::from_secs_f64((seconds - record.seconds).max(0.0)));
        let name = record.name.clone();
        records.save()?;
        Ok((name, left))
    }

    async fn roll(&self, number: usize, server: Option<&str>, left: Option<Duration>) -> Result<Ending, ResearchError> {
        let run = &self.runs[number];
        let mut settings = run.settings.clone();
        let variant = self
            .plan
            .variants
            .iter()
            .position(|variant| variant.name == run.variant);
        if let Some(code) = variant.and_then(|variant| self.codes.get(variant)) {
            settings.push(format!("roll.sync_code={}", serde_json::json!(code)));
        }
        let roll = Roll {
            program: self.options.program.clone(),
            job: self.plan.job.clone(),
            log: self.records().dir().join("runs").join(format!("{}.log", run.name)),
            settings,
            server: server.map(str::to_owned),
            token: self.options.token.clone(),
        };
        let mut roll = roll.start().map_err(ResearchError::Roll)?;
        let time_is_over = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        let ending = tokio::select! {
            read = roll.each_line(|line| self.note(number, line)) => {
                read?;
                return Ok(Ending::Own(roll.ended().await.map_err(ResearchError::Roll)?));
            }
            () = time_is_over => Ending::TimeIsOver,
            () = self.interrupt.wait() => Ending::Interrupted,
        };
        roll.stop().await.map_err(ResearchError::Roll)?;
        if let Some(server) = server {
            // A server that roll did not start keeps its engine.
            let url = with_token(server, self.options.token.as_deref());
            SwarmClient::new(&url)?.stop_engine().await?;
        }
        Ok(ending)
    }

    fn note(&self, number: usize, line: &str) -> Result<(), ResearchError> {
        let Some(measured) = events::read(line, self.plan) else {
            return Ok(());
        };
        let mut records = self.records();
        records.runs[number].note(measured.step, measured.value);
        records.save()
    }

    fn report(&self) -> Result<Report, ResearchError> {
        let records = self.records();
        let report = Report::new(self.plan, &records.runs);
        write(records.dir(), "report.md", &report.markdown())?;
        let json = serde_json::to_string_pretty(&report).unwrap_or_default();
        write(records.dir(), "report.json", &json)?;
        Ok(report)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `roll` that is this shell script.
    fn world(script: &str) -> (tempfile::TempDir, Options) {
        let dir = tempfile::tempdir().unwrap();
        let plan = "{job: job.yaml, steps: 2, last: 1, seeds: [1, 2], variants: [{name: base}, {name: none}]}";
        std::fs::write(dir.path().join("lr.yaml"), plan).unwrap();
        let program = dir.path().join("program");
        let script = format!("#!/bin/sh\ncd {}\n{script}\n", dir.path().display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let options = Options {
            plan: dir.path().join("lr.yaml"),
            out: dir.path().join("out"),
            program,
            token: None,
        };
        (dir, options)
    }

    async fn run_all(options: &Options) -> Report {
        loop {
            match run(options, &Interrupt::default()).await {
                // Another test's fork may hold the script open for writing for a moment.
                Err(ResearchError::Roll(error)) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                report => return report.unwrap(),
            }
        }
    }

    const ROLL: &str = r#"echo "$*" >> calls
case "$*" in *_none_*) value=0.1 ;; *) value=0.6 ;; esac
case "$*" in *seed=2*) value="${value}4" ;; esac
echo "{\"event\":\"step\",\"global_step\":1,\"reward_mean\":0.05}"
echo "{\"event\":\"step\",\"global_step\":2,\"reward_mean\":$value}""#;

    #[tokio::test]
    async fn all_runs_are_run_once_and_compared() {
        let (dir, options) = world(ROLL);
        for _ in 0..2 {
            let report = run_all(&options).await;
            assert_eq!(report.runs, (4, 4));
            assert!(
                report.conclusions[0].starts_with("none is worse than base"),
                "{report:?}"
            );
        }
        let calls = std::fs::read_to_string(dir.path().join("calls")).unwrap();
        assert_eq!(calls.lines().count(), 4, "{calls}");
        let first = calls.lines().next().unwrap();
        assert!(first.starts_with("supervise -- "), "{first}");
        assert!(
            first.contains("job.yaml --json") && first.contains("--set ajet.experiment_name=lr_base_seed_1"),
            "{first}"
        );
        let markdown = std::fs::read_to_string(options.out.join("report.md")).unwrap();
        assert!(markdown.contains("| none | 2 | 0.1200 ± 0.0283 |"), "{markdown}");
        assert!(options.out.join("report.json").exists());
    }

    #[tokio::test]
    async fn a_failed_run_is_named_and_tried_again() {
        let (dir, options) = world(&format!(
            "[ -e fixed ] || {{ echo 'error: no server' >&2; exit 1; }}\n{ROLL}"
        ));
        let report = run_all(&options).await;
        assert_eq!((report.runs, report.failed.len()), ((0, 4), 4));
        assert_eq!(
            report.failed[0],
            ("base_seed_1".to_owned(), "error: no server".to_owned())
        );
        std::fs::write(dir.path().join("fixed"), "").unwrap();
        assert_eq!(run_all(&options).await.runs, (4, 4));
    }

    #[tokio::test]
    async fn an_interrupted_run_goes_on_the_next_time() {
        let (dir, options) = world(&format!("{ROLL}\n[ -e fixed ] || cat > /dev/null"));
        let interrupt = Interrupt::default();
        let (report, ()) = tokio::join!(run(&options, &interrupt), async {
            while std::fs::read_to_string(options.out.join("state.json")).map_or(true, |text| !text.contains("0.6")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            interrupt.stop();
        });
        assert_eq!(report.unwrap().runs, (0, 4));
        std::fs::write(dir.path().join("fixed"), "").unwrap();
        assert_eq!(run_all(&options).await.runs, (4, 4));
        let calls = std::fs::read_to_string(dir.path().join("calls")).unwrap();
        assert_eq!(calls.lines().count(), 5, "{calls}");
    }
}
