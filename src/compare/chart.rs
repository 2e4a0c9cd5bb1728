//! A metric of several runs over steps, drawn with characters.

use super::RunMetrics;
use super::table::number;

/// Characters of the runs; beyond them they repeat.
const MARKS: [char; 8] = ['*', 'o', '+', 'x', '#', '@', '%', '&'];
/// Lines of the plot.
const HEIGHT: usize = 14;
/// Minimum columns of the plot.
const MIN_WIDTH: usize = 20;

/// Returns a chart of at most `width` columns; empty if no run has the metric.
pub fn chart(runs: &[RunMetrics], metric: &str, width: usize) -> String {
    let series: Vec<Vec<(u64, f64)>> = runs.iter().map(|run| run.series(metric)).collect();
    let Some(area) = Area::of(&series, width) else {
        return String::new();
    };
    let mut text = format!("{metric}\n");
    for (line, cells) in area.plot(&series).into_iter().enumerate() {
        let label = match line {
            0 => number(area.top),
            line if line == HEIGHT - 1 => number(area.bottom),
            _ => String::new(),
        };
        let cells: String = cells.into_iter().collect();
        text += format!("{label:>10} │{cells}").trim_end();
        text.push('\n');
    }
    text += &format!("{:>10} └{}\n", "", "─".repeat(area.width));
    let (first, last) = (area.first.to_string(), format!("step {}", area.last));
    let gap = area.width.saturating_sub(first.len() + last.chars().count());
    text += &format!("{:>12}{first}{}{last}\n", "", " ".repeat(gap));
    for (number, run) in runs
        .iter()
        .enumerate()
        .filter(|(number, _)| !series[*number].is_empty())
    {
        text += &format!("{:>12}{} {}\n", "", MARKS[number % MARKS.len()], run.run);
    }
    text
}

/// Ranges of the axes.
struct Area {
    first: u64,
    last: u64,
    bottom: f64,
    top: f64,
    width: usize,
}

impl Area {
    fn of(series: &[Vec<(u64, f64)>], width: usize) -> Option<Self> {
        let points = || series.iter().flatten();
        let values = || points().map(|(_, value)| *value);
        let (bottom, top) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        Some(Self {
            first: points().map(|(step, _)| *step).min()?,
            last: points().map(|(step, _)| *step).max()?,
            bottom,
            top,
            width: width.saturating_sub(13).max(MIN_WIDTH),
        })
    }

    /// Draws each run's mean of the steps of each column; of runs in the same place, the first one shows.
    fn plot(&self, series: &[Vec<(u64, f64)>]) -> Vec<Vec<char>> {
        let mut lines = vec![vec![' '; self.width]; HEIGHT];
        for (number, points) in series.iter().enumerate().rev() {
            let mut columns = vec![(0.0, 0.0); self.width];
            for (step, value) in points {
                let (sum, count) = &mut columns[self.column(*step)];
                (*sum, *count) = (*sum + value, *count + 1.0);
            }
            for (column, (sum, count)) in columns.into_iter().enumerate().filter(|(_, (_, count))| *count > 0.0) {
                lines[self.line(sum / count)][column] = MARKS[number % MARKS.len()];
            }
        }
        lines
    }

    /// Returns the column of a step, below the width.
    fn column(&self, step: u64) -> usize {
        let steps = (self.last - self.first).max(1) as f64;
        let share = (step - self.first) as f64 / steps;
        (share * (self.width - 1) as f64).round() as usize
    }

    /// Returns the line of a value, below the height.
    fn line(&self, value: f64) -> usize {
        let range = self.top - self.bottom;
        let share = if range > 0.0 { (self.top - value) / range } else { 0.5 };
        (share * (HEIGHT - 1) as f64).round() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    #[test]
    fn runs_are_drawn_over_the_same_axes() {
        let runs = [run("up", &[0.0, 0.5, 1.0]), run("none", &[]), run("flat", &[0.5, 0.5])];
        let text = chart(&runs, "reward_mean", 34);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + HEIGHT + 2 + 2, "{text}");
        assert_eq!(lines[1], format!("     1.000 │{}*", " ".repeat(20)));
        assert_eq!(lines[HEIGHT], "         0 │*");
        assert!(lines[8].ends_with(&format!("+{:>10}", "*")), "{text}");
        assert_eq!(lines[HEIGHT + 2], format!("{:>13}{:>20}", "1", "step 3"));
        assert_eq!(lines[HEIGHT + 3..], ["            * up", "            + flat"]);
        assert_eq!(chart(&runs, "loss", 80), "");
    }

    #[test]
    fn a_single_value_and_a_narrow_terminal_are_no_trouble() {
        let text = chart(&[run("a", &[0.5])], "reward_mean", 1);
        assert!(text.contains('*'), "{text}");
    }
}
