//! The report: the result of each variant, and whether it differs from the baseline by more than noise.

use std::fmt::Write as _;

use serde::Serialize;

use super::plan::{Plan, Variant};
use super::record::{Point, RunRecord, RunState};
use super::statistics::{mean_std, pooled, welch};

/// Number of columns of a curve.
const CURVE: usize = 20;
/// Number of runs of each of two variants from which their own variances are used.
const OWN_VARIANCE: usize = 4;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How a variant compares with the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is the baseline.
    Baseline,
    /// Better by more than noise.
    Better,
    /// Worse by more than noise.
    Worse,
    /// The difference may be noise.
    Unclear,
    /// There are too few runs to tell.
    Untested,
}

/// A variant's results.
#[derive(Clone, Debug, Serialize)]
pub struct VariantReport {
    /// Its name.
    pub name: String,
    /// The final value of each of its runs that ended, by seed.
    pub values: Vec<(u64, f64)>,
    /// Their mean.
    pub mean: Option<f64>,
    /// Their unbiased standard deviation.
    pub std: Option<f64>,
    /// Mean minus the baseline's.
    pub difference: Option<f64>,
    /// Probability of such a difference by chance.
    pub p: Option<f64>,
    /// What follows.
    pub verdict: Verdict,
    /// The metric by step, averaged over the runs.
    pub curve: Vec<Point>,
}

/// A research's results.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The compared metric.
    pub metric: String,
    /// Probability below which a difference counts.
    pub significance: f64,
    /// Runs that ended, and all.
    pub runs: (usize, usize),
    /// The variants, in the plan's order.
    pub variants: Vec<VariantReport>,
    /// Runs that failed, with the reasons.
    pub failed: Vec<(String, String)>,
    /// One sentence for each variant but the baseline.
    pub conclusions: Vec<String>,
}

impl Report {
    /// Compares the variants by the runs that ended.
    pub fn new(plan: &Plan, records: &[RunRecord]) -> Self {
        let results: Vec<_> = plan
            .variants
            .iter()
            .map(|variant| Results::new(plan, variant, records))
            .collect();
        let variants: Vec<_> = results.iter().map(|result| result.report(plan, &results)).collect();
        let failed = records.iter().filter_map(|record| match &record.state {
            RunState::Failed(reason) => Some((record.name.clone(), reason.clone())),
            RunState::Done | RunState::Waiting => None,
        });
        let done = records.iter().filter(|record| record.state == RunState::Done).count();
        Self {
            metric: plan.metric.clone(),
            significance: plan.significance,
            runs: (done, records.len()),
            conclusions: variants
                .iter()
                .skip(1)
                .map(|variant| variant.conclusion(plan))
                .collect(),
            failed: failed.collect(),
            variants,
        }
    }

    /// Returns the report as markdown.
    pub fn markdown(&self) -> String {
        let (done, all) = self.runs;
        let mut text = format!("# Research: {}\n\n{done} of {all} runs have ended.\n\n", self.metric);
        // Writing to a string cannot fail.
        for conclusion in &self.conclusions {
            let _ = writeln!(text, "- {conclusion}");
        }
        text += "\n| variant | runs | mean ± std | difference | p | verdict |\n|---|---|---|---|---|---|\n";
        for variant in &self.variants {
            text += &variant.row();
        }
        let _ = write!(
            text,
            "\np: two-sided t-test of the runs' final values against the first variant, from {OWN_VARIANCE} runs of both on \
             Welch's, with fewer one variance for all variants. Below {} a difference counts as more than noise. The values \
             are not corrected for the number of variants.\n\n## Curves\n\n```text\n",
            self.significance
        );
        let range = self.range();
        for variant in &self.variants {
            let _ = writeln!(text, "{:<24} {}", variant.name, curve(&variant.curve, range));
        }
        let _ = writeln!(
            text,
            "```\n\n{:.4} (▁) to {:.4} (█), by step from left to right.",
            range.0, range.1
        );
        for (run, reason) in &self.failed {
            let _ = writeln!(text, "\nRun `{run}` failed: {reason}");
        }
        text
    }

    /// Smallest and largest value of all curves.
    fn range(&self) -> (f64, f64) {
        let values = || {
            self.variants
                .iter()
                .flat_map(|variant| &variant.curve)
                .map(|point| point.value)
        };
        match values().next() {
            Some(first) => (values().fold(first, f64::min), values().fold(first, f64::max)),
            None => (0.0, 0.0),
        }
    }
}

/// The final values of a variant.
struct Results<'a> {
    variant: &'a Variant,
    values: Vec<(u64, f64)>,
    curve: Vec<Point>,
}

impl<'a> Results<'a> {
    fn new(plan: &Plan, variant: &'a Variant, records: &[RunRecord]) -> Self {
        let own: Vec<_> = records.iter().filter(|record| record.variant == variant.name).collect();
        let done = own.iter().filter(|record| record.state == RunState::Done);
        Self {
            variant,
            values: done
                .filter_map(|record| Some((record.seed, record.final_value(plan)?)))
                .collect(),
            curve: mean_curve(&own),
        }
    }

    fn numbers(&self) -> Vec<f64> {
        self.values.iter().map(|(_, value)| *value).collect()
    }

    /// Probability of the difference to the baseline, the first of `all`, by chance.
    fn p(&self, all: &[Self]) -> Option<f64> {
        let (own, baseline) = (self.numbers(), all[0].numbers());
        let fewest = own.len().min(baseline.len());
        let samples: Vec<_> = all.iter().map(Self::numbers).collect();
        match fewest {
            0 | 1 => None,
            OWN_VARIANCE.. => welch(&own, &baseline),
            _ => pooled(&own, &baseline, &samples),
        }
    }

    fn report(&self, plan: &Plan, all: &[Self]) -> VariantReport {
        let baseline = &all[0];
        let (own, others) = (self.numbers(), baseline.numbers());
        let (mean, std) = mean_std(&own).unzip();
        let is_baseline = self.variant.name == baseline.variant.name;
        let difference = mean.zip(mean_std(&others)).map(|(mean, (baseline, _))| mean - baseline);
        let p = self.p(all).filter(|_| !is_baseline);
        let is_better = difference.is_some_and(|difference| (difference > 0.0) != plan.lower_is_better);
        VariantReport {
            name: self.variant.name.clone(),
            values: self.values.clone(),
            mean,
            std,
            difference: difference.filter(|_| !is_baseline),
            p,
            verdict: match p {
                _ if is_baseline => Verdict::Baseline,
                None => Verdict::Untested,
                Some(p) if p >= plan.significance => Verdict::Unclear,
                Some(_) if is_better => Verdict::Better,
                Some(_) => Verdict::Worse,
            },
            curve: self.curve.clone(),
        }
    }
}

impl VariantReport {
    fn row(&self) -> String {
        let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:+.4}"));
        let value = match (self.mean, self.std) {
            (Some(mean), Some(std)) => format!("{mean:.4} ± {std:.4}"),
            _ => "–".into(),
        };
        let p = self.p.map_or("–".to_owned(), |p| format!("{p:.4}"));
        let verdict = match self.verdict {
            Verdict::Baseline => "baseline",
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Unclear => "no clear difference",
            Verdict::Untested => "too few runs",
        };
        let (name, runs, difference) = (&self.name, self.values.len(), number(self.difference));
        format!("| {name} | {runs} | {value} | {difference} | {p} | {verdict} |\n")
    }

    fn conclusion(&self, plan: &Plan) -> String {
        let (name, baseline, metric) = (&self.name, &plan.variants[0].name, &plan.metric);
        let by = self
            .difference
            .map_or_else(String::new, |difference| format!("{:.4}", difference.abs()));
        let p = self.p.unwrap_or(1.0);
        match self.verdict {
            Verdict::Better => format!("{name} is better than {baseline}: {metric} differs by {by} (p = {p:.4})"),
            Verdict::Worse => format!("{name} is worse than {baseline}: {metric} differs by {by} (p = {p:.4})"),
            Verdict::Unclear => {
                format!("{name} and {baseline} do not differ by more than noise: {metric} by {by} (p = {p:.4})")
            }
            Verdict::Baseline | Verdict::Untested => {
                format!("{name} and {baseline} cannot be compared: each needs at least two runs that ended")
            }
        }
    }
}

/// Averages curves at the steps that all of them have.
fn mean_curve(records: &[&RunRecord]) -> Vec<Point> {
    let with_points: Vec<_> = records.iter().filter(|record| !record.points.is_empty()).collect();
    let Some(first) = with_points.first() else {
        return Vec::new();
    };
    let mean_at = |step: u64| {
        let at = |record: &&&RunRecord| {
            record
                .points
                .iter()
                .find(|point| point.step == step)
                .map(|point| point.value)
        };
        let values: Option<Vec<f64>> = with_points.iter().map(at).collect();
        let value = mean_std(&values?)?.0;
        Some(Point { step, value })
    };
    first.points.iter().filter_map(|point| mean_at(point.step)).collect()
}

/// Draws a curve with one bar for each part of its steps.
fn curve(points: &[Point], (low, high): (f64, f64)) -> String {
    let columns = CURVE.min(points.len());
    (0..columns)
        .map(|column| {
            let part = &points[column * points.len() / columns..(column + 1) * points.len() / columns];
            let mean = part.iter().map(|point| point.value).sum::<f64>() / part.len() as f64;
            let height = (mean - low) / (high - low).max(f64::MIN_POSITIVE) * (BARS.len() - 1) as f64;
            BARS[(height.round() as usize).min(BARS.len() - 1)]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(more: &str) -> Plan {
        let text = "{job: j, steps: 4, last: 2, seeds: [1, 2], variants: [{name: base}, {name: none}, {name: same}]";
        Plan::parse(&format!("{text}{more}}}")).unwrap()
    }

    fn records(plan: &Plan, ends: &[f64]) -> Vec<RunRecord> {
        let runs = plan.runs("p").into_iter().zip(ends);
        runs.map(|(run, end)| {
            let mut record = RunRecord {
                name: run.name,
                variant: run.variant,
                seed: run.seed,
                state: RunState::Done,
                ..RunRecord::default()
            };
            for step in 1..=4 {
                record.note(step, end * step as f64 / 4.0);
            }
            record
        })
        .collect()
    }

    #[test]
    fn a_variant_that_learns_nothing_is_called_worse_and_an_equal_one_is_not() {
        let plan = plan("");
        let records = records(&plan, &[0.60, 0.10, 0.63, 0.64, 0.12, 0.59]);
        let report = Report::new(&plan, &records);
        let verdicts: Vec<_> = report.variants.iter().map(|variant| variant.verdict).collect();
        assert_eq!(verdicts, [Verdict::Baseline, Verdict::Worse, Verdict::Unclear]);
        let [(1, first), (2, second)] = report.variants[1].values[..] else {
            panic!("{report:?}");
        };
        assert!((first - 0.0875).abs() < 1e-12 && (second - 0.105).abs() < 1e-12);
        let text = report.markdown();
        for said in [
            "6 of 6 runs have ended",
            "- none is worse than base: reward_mean differs by 0.4462 (p = 0.0002)",
            "- same and base do not differ by more than noise",
            "| base | 2 | 0.5425 ± 0.0247 | – | – | baseline |",
            "base                     ▃▄▆█",
        ] {
            assert!(text.contains(said), "{said:?} in {text}");
        }
        serde_json::to_string(&report).unwrap();
    }

    #[test]
    fn smaller_is_better_where_the_plan_says_so() {
        let plan = plan(", lower_is_better: true");
        let report = Report::new(&plan, &records(&plan, &[0.60, 0.10, 0.63, 0.64, 0.12, 0.59]));
        assert_eq!(report.variants[1].verdict, Verdict::Better);
    }

    #[test]
    fn unfinished_and_failed_runs_are_no_values() {
        let plan = plan("");
        let mut records = records(&plan, &[0.60, 0.10, 0.63, 0.64, 0.12, 0.59]);
        records[1].state = RunState::Failed("no batch".into());
        records[2].state = RunState::Waiting;
        records[2].points.clear();
        let report = Report::new(&plan, &records);
        assert_eq!(report.runs, (4, 6));
        assert_eq!(report.variants[1].verdict, Verdict::Untested);
        let text = report.markdown();
        assert!(text.contains("Run `none_seed_1` failed: no batch"), "{text}");
        assert!(text.contains("cannot be compared"), "{text}");
        let nothing = Report::new(&plan, &[]);
        assert!(nothing.markdown().contains("0 of 0 runs"));
    }
}
