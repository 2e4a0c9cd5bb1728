//! Reports of a run: JSON lines or text on stdout, and a progress bar on a terminal's stderr.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::interrupt::Interrupt;
use super::pace::Pace;
use super::report::{End, EpisodeReport, Evaluation, Event, Outcome, Step, Summary};
use super::scores::Scores;
use crate::counted::counted;
use crate::protocol::checkpoint::{directory_name, parse_step};
use crate::protocol::swarm::PoolInformation;
use crate::terminal;

/// Maximum number of failed episodes that are explained in the log, for each reason.
const EXPLAINED: u64 = 3;

/// Maximum columns of a line.
const COLUMNS: usize = 80;

/// The live block: the batch, and below it how the run advances.
const BLOCK: &str = "{prefix} {bar:20} {pos}/{len} episodes  {wide_msg}\n{pace}";

/// Reports the events of a run.
#[derive(Debug)]
pub struct Progress {
    json: bool,
    /// Whether every update gets a line.
    every_step: bool,
    /// Notified if the output has no reader.
    interrupt: Interrupt,
    bar: ProgressBar,
    pace: Arc<Mutex<Pace>>,
    dropped: Mutex<IndexMap<String, u64>>,
}

impl Progress {
    /// Creates a reporter; with `json`, stdout has one JSON object per line.
    pub fn new(json: bool, interrupt: Interrupt) -> Self {
        // Hidden by indicatif where stderr is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let pace = Arc::new(Mutex::new(Pace::new(Instant::now())));
        // The template is a constant; one that indicatif does not take would leave its default bar.
        if let Ok(style) = ProgressStyle::with_template(BLOCK) {
            let shown = pace.clone();
            let write_pace = move |_: &ProgressState, line: &mut dyn std::fmt::Write| {
                // Writing to a string cannot fail.
                let _ = line.write_str(&locked(&shown).summary());
            };
            bar.set_style(style.with_key("pace", write_pace).progress_chars("━╸ "));
        }
        Self {
            json,
            every_step: false,
            interrupt,
            bar,
            pace,
            dropped: Mutex::default(),
        }
    }

    /// With `every_step`, every update of a long run gets a line.
    pub fn with_every_step(mut self, every_step: bool) -> Self {
        self.every_step = every_step;
        self
    }

    /// The training begins at step `first` and ends with step `last`, if that is known.
    pub fn plan(&self, first: u64, last: Option<u64>) {
        locked(&self.pace).plan(first, last, self.every_step, Instant::now());
    }

    /// Whether the bar is visible.
    pub fn is_live(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Reports the start.
    pub fn start(&self, job: &str, server: &str, model: &str) {
        self.json(&Event::Start { job, server, model });
        self.line(|| format!("job {job}, model {model}, server {server}"));
    }

    /// Reports a message on stderr.
    pub fn note(&self, sentence: &str) {
        self.bar.suspend(|| terminal::note(sentence));
    }

    /// Reports an ended episode, or a failed one with `detail`.
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
            1..=EXPLAINED => self.note(&format!("warning: task {}: {detail}", report.task_id)),
            _ => tracing::debug!("task {}: {detail}", report.task_id),
        }
    }

    /// Number of failed episodes so far, by reason.
    pub fn dropped(&self) -> IndexMap<String, u64> {
        let dropped = self.dropped.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        dropped.clone()
    }

    /// Reports a weight update.
    pub fn step(&self, step: &Step) {
        self.json(&Event::Step(step));
        if locked(&self.pace).update(step, Instant::now()) {
            self.line(|| step_line(step));
        }
    }

    /// Reports an evaluation.
    pub fn eval(&self, eval: &Evaluation) {
        self.json(&Event::Eval(eval));
        self.line(|| {
            let updates = eval.global_step.saturating_sub(1);
            let mut parts = vec![Part::always(format!("eval after {}", counted(updates, "update")))];
            parts.extend(summary_parts(&eval.summary));
            parts.push(Part::of(3, counted(eval.summary.episodes, "episode")));
            parts.push(Part::of(1, format!("{:.1} s", eval.seconds)));
            format!("{}{}{}", fit(parts), at_k_line(&eval.scores), group_lines(&eval.scores))
        });
    }

    /// The batch as it fills.
    pub fn batch(&self, pool: &PoolInformation) {
        let episodes = pool.running_episode_details.iter().flat_map(|all| all.values());
        let running = episodes.filter(|episode| episode.has_begun()).count();
        let status = pool
            .engine_status
            .map_or("", |status| status.as_str().trim_start_matches("ENGINE."));
        self.bar
            .set_length(pool.completed_episode_target.max(pool.completed_episodes));
        self.bar.set_position(pool.completed_episodes);
        self.bar.set_prefix(format!("step {}", pool.global_step));
        let next =
            locked(&self.pace).next_update(pool.completed_episodes, pool.completed_episode_target, Instant::now());
        let next = next.unwrap_or_else(|| status.to_owned());
        self.bar.set_message(format!("{running} running  {next}"));
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

fn locked(pace: &Mutex<Pace>) -> MutexGuard<'_, Pace> {
    pace.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A part of a line; of those that do not fit, the one with the largest number is left out first.
struct Part(u8, String);

impl Part {
    fn always(text: String) -> Self {
        Self(0, text)
    }

    fn of(rank: u8, text: String) -> Self {
        Self(rank, text)
    }
}

/// Joins parts to a line that a terminal of the usual width does not wrap.
fn fit(mut parts: Vec<Part>) -> String {
    loop {
        let line = parts.iter().map(|part| part.1.as_str()).collect::<Vec<_>>().join("  ");
        let last = parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.0 > 0)
            .max_by_key(|(_, part)| part.0);
        match last {
            Some((place, _)) if line.chars().count() >= COLUMNS => parts.remove(place),
            _ => return line,
        };
    }
}

fn step_line(step: &Step) -> String {
    let mut parts = vec![Part::always(format!("step {:<3}", step.global_step))];
    parts.extend(summary_parts(&step.summary));
    let per_second = |count: f64| count / step.seconds.max(1e-3);
    let episodes = per_second(step.summary.episodes as f64);
    parts.push(Part::of(6, format!("{episodes:.1} episodes/s")));
    if let Some(tokens) = step.metrics.get("response_tokens") {
        parts.push(Part::of(4, format!("{:.0} tokens/s", per_second(*tokens))));
    }
    parts.push(Part::of(1, format!("{:.1} s", step.seconds)));
    fit(parts)
}

fn summary_parts(summary: &Summary) -> Vec<Part> {
    let mut reward = match summary.reward_mean {
        Some(mean) => format!("reward {mean:.3}"),
        None => "reward -".into(),
    };
    if let Some(std) = summary.reward_std {
        let _ = write!(reward, " ±{std:.2}");
    }
    let mut parts = vec![Part::always(reward)];
    let success = summary
        .success_rate
        .map(|rate| format!("success {:3.0}%", rate * 100.0));
    parts.extend(success.map(|text| Part::of(2, text)));
    let length = summary.response_length_mean.map(|length| format!("length {length:.1}"));
    parts.extend(length.map(|text| Part::of(5, text)));
    parts
}

/// A line of pass@k and mean@k, such as `pass@1 0.250  pass@2 0.406  mean@2 0.250`; empty where there are none.
fn at_k_line(scores: &Scores) -> String {
    let scores: Vec<_> = scores
        .at_k
        .iter()
        .map(|(name, score)| format!("{name} {score:.3}"))
        .collect();
    match scores.is_empty() {
        true => String::new(),
        false => format!("\n  {}", scores.join("  ")),
    }
}

/// A line for each group of tasks.
fn group_lines(scores: &Scores) -> String {
    let width = scores.groups.keys().map(|tag| tag.chars().count()).max().unwrap_or(0);
    let lines = scores.groups.iter().map(|(tag, summary)| {
        let tag = terminal::one_line(tag);
        let mut parts = vec![Part::always(format!("  {tag:<width$}"))];
        parts.extend(summary_parts(summary));
        parts.push(Part::of(3, counted(summary.episodes, "episode")));
        format!("\n{}", fit(parts))
    });
    lines.collect()
}

/// Eval before and after, failed episodes by reason, and the path of the model.
fn end_table(end: &End) -> String {
    let mut table = match end.outcome {
        Outcome::Done => format!("\ndone after {}\n", counted(end.steps, "update")),
        Outcome::Interrupted => format!("\nstopped after {}\n", counted(end.steps, "update")),
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
        let _ = writeln!(table, "failed episodes: {}", counts.join(", "));
    }
    if let Some(checkpoint) = &end.checkpoint {
        let _ = writeln!(table, "checkpoint: {checkpoint}");
        table += &next_steps(checkpoint);
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

/// What can be done with a checkpoint of this machine; of those of another one only the directory is known.
fn next_steps(checkpoint: &str) -> String {
    let path = Path::new(checkpoint);
    let step = path.file_name().and_then(|name| parse_step(&name.to_string_lossy()));
    match (step, path.parent().and_then(Path::parent)) {
        (Some(_), Some(experiment)) => format!(
            "talk to it: ajet-swarm chat {checkpoint}\nlook back: ajet-swarm overwatch --replay {}\n",
            experiment.display()
        ),
        _ => String::new(),
    }
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
            "step 7    reward 0.500 ±0.25  success  50%  length 5.5  250 tokens/s  2.0 s"
        );
    }

    #[test]
    fn lines_fit_a_terminal() {
        for (reward, length, tokens, seconds) in [
            (0.5, 5.5, 500.0, 2.0),
            (-12345.678, 12345.6, 123_456_789.0, 12_345.6),
            (1e9, 1.0, 1.0, 0.0),
        ] {
            let step = Step {
                global_step: 123_456,
                summary: Summary {
                    response_length_mean: Some(length),
                    ..summary(reward)
                },
                seconds,
                metrics: [("response_tokens".to_string(), tokens)].into(),
            };
            let line = step_line(&step);
            assert!(line.chars().count() < COLUMNS, "{line}");
            assert!(line.contains("reward "), "{line}");
        }
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
        assert!(
            table.contains(
                "ajet-swarm chat saved/checkpoints/global_step_3\nlook back: ajet-swarm overwatch --replay saved\n"
            ),
            "{table}"
        );
        assert_eq!(next_steps("/on/another/machine/checkpoints"), "");
        assert!(table.contains("checkpoint: saved/checkpoints/global_step_3"), "{table}");
        assert!(
            table.contains("best checkpoint: global_step_2 (eval/reward_mean 0.950)"),
            "{table}"
        );
    }
}
