//! Where a run is told: JSON lines or lines for people on stdout, a live bar on a terminal's stderr.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;

use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::interrupt::Interrupt;
use super::report::{End, EpisodeReport, Evaluation, Event, Outcome, Step, Summary};
use crate::protocol::checkpoint::directory_name;
use crate::protocol::swarm::PoolInformation;
use crate::terminal;

/// Episodes that come to nothing are explained in the log this often for each reason.
const EXPLAINED: u64 = 3;

/// Tells a run's events.
#[derive(Debug)]
pub struct Progress {
    json: bool,
    /// Told where nobody reads what is printed.
    interrupt: Interrupt,
    bar: ProgressBar,
    dropped: Mutex<IndexMap<String, u64>>,
}

impl Progress {
    /// With `json`, stdout has one JSON object a line.
    pub fn new(json: bool, interrupt: Interrupt) -> Self {
        // Hidden by indicatif where stderr is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is a constant; one that indicatif does not take would leave its default bar.
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} episodes {wide_msg}") {
            bar.set_style(style.progress_chars("━╸ "));
        }
        Self {
            json,
            interrupt,
            bar,
            dropped: Mutex::default(),
        }
    }

    /// Whether someone sees the bar.
    pub fn is_live(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// The first event.
    pub fn start(&self, job: &str, server: &str, model: &str) {
        self.json(&Event::Start { job, server, model });
        self.line(|| format!("job {job}, model {model}, server {server}"));
    }

    /// A sentence for people, on stderr.
    pub fn note(&self, sentence: &str) {
        self.bar.suspend(|| terminal::note(sentence));
    }

    /// An episode ended or came to nothing, for which `detail` is the sentence.
    pub fn episode(&self, report: &EpisodeReport, detail: &str) {
        self.json(&Event::Episode(report));
        let Some(reason) = &report.dropped else { return };
        let times = {
            let mut dropped = self.dropped.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let times = dropped.entry(reason.clone()).or_default();
            *times += 1;
            *times
        };
        match times {
            1..=EXPLAINED => self.bar.suspend(|| tracing::warn!("task {}: {detail}", report.task_id)),
            _ => tracing::debug!("task {}: {detail}", report.task_id),
        }
    }

    /// Episodes that came to nothing so far, by reason.
    pub fn dropped(&self) -> IndexMap<String, u64> {
        let dropped = self.dropped.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        dropped.clone()
    }

    /// A weight update.
    pub fn step(&self, step: &Step) {
        self.json(&Event::Step(step));
        self.line(|| step_line(step));
    }

    /// An evaluation.
    pub fn eval(&self, eval: &Evaluation) {
        self.json(&Event::Eval(eval));
        self.line(|| {
            let updates = eval.global_step.saturating_sub(1);
            format!(
                "eval after {updates} updates  {}  {:.1} s",
                summary_text(&eval.summary),
                eval.seconds
            )
        });
    }

    /// The batch as it fills.
    pub fn batch(&self, pool: &PoolInformation) {
        let running = pool.running_episode_details.as_ref().map_or(0, |running| running.len());
        let status = pool
            .engine_status
            .map_or("", |status| status.as_str().trim_start_matches("ENGINE."));
        self.bar
            .set_length(pool.completed_episode_target.max(pool.completed_episodes));
        self.bar.set_position(pool.completed_episodes);
        self.bar.set_prefix(format!("step {}", pool.global_step));
        self.bar.set_message(format!("{running} running  {status}"));
    }

    /// What the engine does while it boots.
    pub fn booting(&self, detail: &str) {
        self.bar.set_prefix("engine");
        self.bar.set_message(terminal::one_line(detail));
    }

    /// The last event.
    pub fn end(&self, end: &End) {
        self.bar.finish_and_clear();
        self.json(&Event::End(end));
        self.line(|| end_table(end).trim_end().to_string());
    }

    fn json(&self, event: &Event) {
        if self.json {
            // Floats that JSON cannot hold become null, and every key is a string: serialising cannot fail.
            let text = serde_json::to_string(event).unwrap_or_default();
            self.print(&terminal::json(&text));
        }
    }

    fn line(&self, line: impl FnOnce() -> String) {
        if !self.json {
            self.print(&terminal::printable(&line()));
        }
    }

    fn print(&self, text: &str) {
        let written = self.bar.suspend(|| {
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout, "{text}").and_then(|()| stdout.flush())
        });
        if written.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
            self.interrupt.reader_is_gone();
        }
    }
}

fn step_line(step: &Step) -> String {
    let mut line = format!("step {:<4} {}", step.global_step, summary_text(&step.summary));
    let per_second = |count: f64| count / step.seconds.max(1e-3);
    // Writing to a string cannot fail.
    let _ = write!(line, "  {:.1} episodes/s", per_second(step.summary.episodes as f64));
    if let Some(tokens) = step.metrics.get("response_tokens") {
        let _ = write!(line, "  {:.0} tokens/s", per_second(*tokens));
    }
    let _ = write!(line, "  {:.1} s", step.seconds);
    line
}

fn summary_text(summary: &Summary) -> String {
    let mut text = match summary.reward_mean {
        Some(mean) => format!("reward {mean:.3}"),
        None => "reward -".into(),
    };
    if let Some(std) = summary.reward_std {
        let _ = write!(text, " ±{std:.2}");
    }
    if let Some(rate) = summary.success_rate {
        let _ = write!(text, "  success {:3.0}%", rate * 100.0);
    }
    if let Some(length) = summary.response_length_mean {
        let _ = write!(text, "  length {length:.1}");
    }
    let _ = write!(text, "  {} episodes", summary.episodes);
    text
}

/// Eval before and after, what came to nothing, and where the model is.
fn end_table(end: &End) -> String {
    let mut table = match end.outcome {
        Outcome::Done => format!("\ndone after {} updates\n", end.steps),
        Outcome::Interrupted => format!("\nstopped after {} updates\n", end.steps),
    };
    if let (Some(before), Some(after)) = (&end.eval_before, &end.eval_after) {
        let _ = writeln!(table, "{:<16}{:>8}{:>8}{:>9}", "eval", "before", "after", "change");
        for (name, before, after) in [
            ("reward", before.reward_mean, after.reward_mean),
            ("success", before.success_rate, after.success_rate),
            ("length", before.response_length_mean, after.response_length_mean),
        ] {
            if let (Some(before), Some(after)) = (before, after) {
                let _ = writeln!(table, "{name:<16}{before:>8.3}{after:>8.3}{:>+9.3}", after - before);
            }
        }
    }
    if !end.dropped.is_empty() {
        let counts: Vec<_> = end
            .dropped
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        let _ = writeln!(table, "episodes that came to nothing: {}", counts.join(", "));
    }
    if let Some(checkpoint) = &end.checkpoint {
        let _ = writeln!(table, "checkpoint: {checkpoint}");
    }
    for (model, checkpoint) in &end.other_checkpoints {
        let _ = writeln!(table, "checkpoint of {model}: {checkpoint}");
    }
    if let Some(best) = &end.best {
        let (directory, metric, value) = (directory_name(best.step), &best.metric, best.value);
        let _ = writeln!(table, "best checkpoint: {directory} ({metric} {value:.3})");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::checkpoint::BestCheckpoint;

    fn summary(reward: f64) -> Summary {
        Summary {
            reward_mean: Some(reward),
            reward_std: Some(0.25),
            success_rate: Some(reward),
            episodes: 64,
            response_length_mean: Some(5.5),
        }
    }

    #[test]
    fn a_step_is_one_line() {
        let step = Step {
            global_step: 7,
            summary: summary(0.5),
            seconds: 2.0,
            metrics: [("response_tokens".to_string(), 500.0)].into(),
        };
        assert_eq!(
            step_line(&step),
            "step 7    reward 0.500 ±0.25  success  50%  length 5.5  64 episodes  32.0 episodes/s  250 tokens/s  2.0 s"
        );
    }

    #[test]
    fn the_end_shows_eval_before_and_after_and_the_checkpoint() {
        let end = End {
            outcome: Outcome::Done,
            steps: 3,
            eval_before: Some(summary(0.25)),
            eval_after: Some(summary(0.9)),
            checkpoint: Some("saved/checkpoints/global_step_3".into()),
            best: Some(BestCheckpoint {
                step: 2,
                metric: "eval/reward_mean".into(),
                value: 0.95,
                episodes: 64,
            }),
            other_checkpoints: IndexMap::new(),
            dropped: [("agent_failed".to_string(), 2)].into(),
        };
        let table = end_table(&end);
        assert!(table.contains("reward             0.250   0.900   +0.650"), "{table}");
        assert!(table.contains("2 agent_failed"), "{table}");
        assert!(table.contains("checkpoint: saved/checkpoints/global_step_3"), "{table}");
        assert!(
            table.contains("best checkpoint: global_step_2 (eval/reward_mean 0.950)"),
            "{table}"
        );
    }
}
