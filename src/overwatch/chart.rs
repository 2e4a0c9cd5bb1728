//! Curves over steps, with numbers at the axes and a line at zero.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType};

use super::format::{count, number};
use super::theme::Theme;

/// Values by step.
pub type Points = Vec<(f64, f64)>;

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Connected values.
    Line,
    /// A border of a band.
    Border,
    /// Single values.
    Marks,
}

/// A curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Values by step.
    pub points: Points,
    /// How it is drawn.
    pub shape: Shape,
    /// Colour.
    pub color: Color,
}

/// Draws curves with a common step axis from 1.
pub fn draw(frame: &mut Frame, area: Rect, block: Block, curves: &[Curve], theme: Theme) {
    let inner = block.inner(area);
    let thinned: Vec<Points> = curves
        .iter()
        .map(|curve| thin(&curve.points, usize::from(inner.width) * 2))
        .collect();
    let all = || thinned.iter().flatten().copied();
    let last = all().map(|(step, _)| step).fold(2.0, f64::max);
    let ticks = ticks(all().map(|(_, value)| value), usize::from(inner.height / 4).clamp(1, 4));
    let Some((low, high)) = ticks
        .first()
        .zip(ticks.last())
        .filter(|_| inner.height > 2 && inner.width > 12)
    else {
        frame.render_widget(block, area);
        return;
    };
    let zero = [(1.0, 0.0), (last, 0.0)];
    let mut datasets = vec![];
    if *low < 0.0 && *high > 0.0 {
        datasets.push(dataset(&zero, Shape::Border, Color::DarkGray, theme));
    }
    for (curve, points) in curves.iter().zip(&thinned) {
        datasets.push(dataset(points, curve.shape, curve.color, theme));
    }
    let labels: Vec<String> = ticks.iter().map(|tick| tick_label(*tick, &ticks)).collect();
    let steps = [1.0, ((last + 1.0) / 2.0).floor(), last].map(|step| count(step as u64));
    let axis = |bounds, labels: Vec<String>| {
        Axis::default()
            .bounds(bounds)
            .labels(labels.into_iter().map(Line::from))
            .style(theme.faint())
    };
    let chart = Chart::new(datasets)
        .block(block)
        .legend_position(None)
        .x_axis(axis([1.0, last], steps.to_vec()))
        .y_axis(axis([*low, *high], labels));
    frame.render_widget(chart, area);
}

fn dataset<'a>(points: &'a [(f64, f64)], shape: Shape, color: Color, theme: Theme) -> Dataset<'a> {
    let (marker, graph) = match shape {
        Shape::Line => (Marker::Braille, GraphType::Line),
        Shape::Border => (Marker::Braille, GraphType::Scatter),
        Shape::Marks => (Marker::Dot, GraphType::Scatter),
    };
    Dataset::default()
        .data(points)
        .marker(marker)
        .graph_type(graph)
        .style(theme.colored(color))
}

/// Averages neighbours so that at most `most` points remain; the last one stays the last step.
fn thin(points: &[(f64, f64)], most: usize) -> Points {
    let size = points.len().div_ceil(most.max(1));
    if size <= 1 {
        return points.to_vec();
    }
    let mean = |chunk: &[(f64, f64)]| {
        let values: f64 = chunk.iter().map(|(_, value)| value).sum();
        (chunk.last().map_or(0.0, |(step, _)| *step), values / chunk.len() as f64)
    };
    points.chunks(size).map(mean).collect()
}

/// Returns round numbers at equal distances that enclose the values; with `parts` distances, or one or two more.
fn ticks(values: impl Iterator<Item = f64>, parts: usize) -> Vec<f64> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|value| value.is_finite()) {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        return vec![];
    }
    // Values far from zero relative to their spread keep their own range; others begin at zero.
    if low > 0.0 && low < 0.5 * high {
        low = 0.0;
    }
    if high - low < 1e-12 * high.abs().max(1e-12) {
        let margin = if high == 0.0 { 1.0 } else { high.abs() * 0.5 };
        (low, high) = (low - margin, high + margin);
    }
    let step = round_step((high - low) / parts as f64);
    let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
    (first..=last).map(|tick| tick as f64 * step).collect()
}

/// Returns the smallest of 1, 2, 2.5 and 5 times a power of ten that is not below the distance.
fn round_step(distance: f64) -> f64 {
    let power = 10_f64.powf(distance.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0].map(|step| step * power);
    // The next power of ten is larger than the distance.
    steps
        .into_iter()
        .find(|step| *step >= distance * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// Formats a tick with as many decimals as its neighbours differ in.
fn tick_label(tick: f64, ticks: &[f64]) -> String {
    let step = if ticks.len() > 1 { ticks[1] - ticks[0] } else { 1.0 };
    let size = ticks.iter().fold(0.0_f64, |size, tick| size.max(tick.abs()));
    if tick == 0.0 {
        return "0".into();
    }
    if !(1e-3..1e5).contains(&size) {
        return format!("{tick:.1e}");
    }
    let decimals = (0..6).find(|decimals| {
        let scaled = step * 10_f64.powi(*decimals);
        (scaled - scaled.round()).abs() < 1e-6
    });
    match decimals {
        Some(decimals) => format!("{tick:.*}", decimals as usize),
        None => number(tick),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64], parts: usize) -> Vec<String> {
        let ticks = ticks(values.iter().copied(), parts);
        ticks.iter().map(|tick| tick_label(*tick, &ticks)).collect()
    }

    #[test]
    fn axes_have_round_numbers() {
        for (values, parts, want) in [
            (vec![0.33, 0.47, 0.94], 4, vec!["0", "0.25", "0.50", "0.75", "1.00"]),
            (vec![0.9, 0.95], 2, vec!["0.900", "0.925", "0.950"]),
            (vec![-1.5, 2.0], 2, vec!["-2", "0", "2"]),
            (vec![0.0, 0.0], 2, vec!["-1", "0", "1"]),
            (vec![4.0], 2, vec!["2", "4", "6"]),
            (vec![1e-5, 4e-4], 2, vec!["0", "2.0e-4", "4.0e-4"]),
            (vec![5000.0, 10400.0], 2, vec!["0", "10000", "20000"]),
            (vec![f64::NAN], 2, vec![]),
            (vec![], 2, vec![]),
        ] {
            assert_eq!(labels(&values, parts), want, "{values:?}");
        }
    }

    #[test]
    fn many_points_are_averaged() {
        let points: Points = (1..=10).map(|step| (f64::from(step), f64::from(step % 2))).collect();
        assert_eq!(
            thin(&points, 5),
            [(2.0, 0.5), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)]
        );
        assert_eq!(thin(&points, 10), points);
        assert_eq!(thin(&[], 10), []);
        assert_eq!(thin(&points, 0).len(), 1);
    }
}
