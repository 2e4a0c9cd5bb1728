//! Runs side by side.

use super::RunMetrics;

/// Number of last steps whose mean is shown.
const RECENT: usize = 10;

/// Returns a table: a line for each metric, a column for each run, each cell with the last value and the mean of the
/// last ten.
pub fn table(runs: &[RunMetrics], metrics: &[String]) -> String {
    let mut rows = vec![row("", runs.iter().map(|run| run.run.clone()))];
    rows.push(row("last step", runs.iter().map(last_step)));
    for name in metrics {
        rows.push(row(name, runs.iter().map(|run| cell(&run.series(name)))));
    }
    let columns = runs.len() + 1;
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| -> String {
        let cells = row.iter().zip(&widths).enumerate();
        let padded = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        padded.collect::<String>().trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    [name.to_owned()].into_iter().chain(cells).collect()
}

fn last_step(run: &RunMetrics) -> String {
    run.steps
        .last()
        .map_or_else(|| "–".into(), |step| step.global_step.to_string())
}

fn cell(series: &[(u64, f64)]) -> String {
    let Some((_, last)) = series.last() else {
        return "–".into();
    };
    let recent = &series[series.len().saturating_sub(RECENT)..];
    let mean = recent.iter().map(|(_, value)| value).sum::<f64>() / recent.len() as f64;
    format!("{} ({})", number(*last), number(mean))
}

/// Formats a number with four significant digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e5).contains(&size) => format!("{value:.3e}"),
        size => {
            let decimals = (3 - size.log10().floor() as i32).max(0) as usize;
            format!("{value:.decimals$}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    #[test]
    fn a_cell_has_the_last_value_and_the_mean_of_the_last_ten() {
        let rewards: Vec<f64> = (0..20).map(f64::from).collect();
        let runs = [run("first", &rewards), run("b", &[0.5])];
        let text = table(&runs, &["reward_mean".into(), "loss".into()]);
        let expected = "                     first                b
last step               20                1
reward_mean  19.00 (14.50)  0.5000 (0.5000)
loss                     –                –
";
        assert_eq!(text, expected);
    }

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.51239, "0.5124"),
            (-12.3456, "-12.35"),
            (12345.6, "12346"),
            (1e-7, "1.000e-7"),
            (2.5e9, "2.500e9"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
