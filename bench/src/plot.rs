//! The course of a load as a picture: rate, memory and size on disk over the measurements loaded.

use std::fmt::Write;

use crate::course::LoadPoint;

/// Width of the picture and height of a panel, in pixels.
const WIDTH: f64 = 760.0;
const PANEL: f64 = 170.0;

/// Space left of the axes, right of them, above a panel and below it.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 30.0;

/// Height for the title of all horizontal axes.
const TITLE: f64 = 14.0;

/// Marks on an axis, besides zero.
const MARKS: usize = 4;

/// Returns an SVG file with a panel for each figure. Every axis begins at zero.
pub(crate) fn svg(points: &[LoadPoint]) -> String {
    let disk = |point: &LoadPoint| point.disk.unwrap_or_default() as f64 / 1e6;
    let panels: [(&str, Vec<f64>); 3] = [
        (
            "thousand measurements a second",
            points.iter().map(|p| p.rate / 1e3).collect(),
        ),
        (
            "memory, MB",
            points.iter().map(|p| p.memory as f64 / 1e6).collect(),
        ),
        ("on disk, MB", points.iter().map(disk).collect()),
    ];
    let rows: Vec<f64> = points.iter().map(|p| p.rows as f64 / 1e6).collect();
    let below = PANEL * panels.len() as f64;
    let height = below + TITLE;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (at, (title, values)) in panels.iter().enumerate() {
        panel(&mut out, PANEL * at as f64, title, (&rows, values));
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">million measurements loaded</text>\n</svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
    );
    out
}

/// Writes one panel, whose upper edge is at `y`.
fn panel(out: &mut String, y: f64, title: &str, (rows, values): (&[f64], &[f64])) {
    let (right, top, bottom) = (WIDTH - RIGHT, y + TOP, y + PANEL - BOTTOM);
    let (x_max, y_max) = (round_up(largest(rows)), round_up(largest(values)));
    let x_of = |value: f64| LEFT + value / x_max * (right - LEFT);
    let y_of = |value: f64| bottom - value / y_max * (bottom - top);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{:.0}\" font-weight=\"bold\">{title}</text>",
        top - 10.0
    );
    for mark in 0..=MARKS {
        let part = mark as f64 / MARKS as f64;
        let (value, row) = (y_max * part, x_max * part);
        let at = y_of(value);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{row}</text>",
            LEFT - 6.0,
            at + 4.0,
            x_of(row),
            bottom + 16.0,
        );
    }
    let line: Vec<String> = rows
        .iter()
        .zip(values)
        .map(|(row, value)| format!("{:.1},{:.1}", x_of(*row), y_of(*value)))
        .collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#1668b8\" stroke-width=\"2\"/>",
        line.join(" ")
    );
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Returns the next number that is one of a few, whose quarters are short, times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number() {
        for (value, end) in [
            (0.0, 1.0),
            (0.9, 1.0),
            (1.0, 1.0),
            (1.002, 1.2),
            (3.0, 3.2),
            (812.0, 1000.0),
        ] {
            assert!((round_up(value) - end).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn points_are_within_the_picture() {
        let point = |rows, rate| LoadPoint {
            rows,
            rate,
            memory: 5_000_000,
            disk: None,
        };
        let text = svg(&[point(1_000_000, 700.0), point(2_000_000, 900.0)]);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("<polyline"))
            .collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("\"405.0,"), "{}", lines[0]);
    }
}
