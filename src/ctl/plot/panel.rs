//! A panel of a chart: stacked areas over time, lines above them, a grid and a legend. Pure.

use crate::svg::{Anchor, FAINT, GRID, Svg, TEXT};

/// Height of a line of text.
const LINE: f64 = 15.0;

/// An interval of time, in seconds before the chart's end, both negative or zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its begin.
    pub from: f64,
    /// Its end.
    pub to: f64,
}

/// A stacked area.
pub struct Band {
    /// Its name in the legend.
    pub name: String,
    /// What else the legend says.
    pub note: String,
    /// Its colour.
    pub colour: &'static str,
    /// A value for each interval.
    pub values: Vec<f64>,
}

/// A line of steps.
pub struct Steps {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// A value for each interval.
    pub values: Vec<f64>,
}

/// See the file's head.
pub struct Panel {
    /// What is shown.
    pub title: String,
    /// The value at the upper edge.
    pub top: f64,
    /// The label of a value.
    pub label: fn(f64) -> String,
    /// The intervals, the oldest first.
    pub intervals: Vec<Interval>,
    /// From below.
    pub bands: Vec<Band>,
    /// Above the bands.
    pub lines: Vec<Steps>,
}

/// Where a panel is drawn.
#[derive(Clone, Copy)]
pub struct Place {
    /// The left edge of the area.
    pub x: f64,
    /// Its upper edge.
    pub y: f64,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
    /// The seconds that the width is.
    pub seconds: f64,
}

impl Place {
    fn at(&self, seconds: f64) -> f64 {
        self.x + self.width * (1.0 + seconds / self.seconds).clamp(0.0, 1.0)
    }

    fn level(&self, value: f64, top: f64) -> f64 {
        self.y + self.height * (1.0 - (value / top).clamp(0.0, 1.0))
    }
}

impl Panel {
    /// Draws the panel, and its legend at the right.
    pub fn draw(&self, svg: &mut Svg, place: Place) {
        svg.text((place.x, place.y - 8.0), 13.0, (TEXT, Anchor::Start), &self.title);
        for quarter in 0..=4 {
            let value = self.top * f64::from(quarter) / 4.0;
            let y = place.level(value, self.top);
            svg.line(&[(place.x, y), (place.x + place.width, y)], GRID, (1.0, ""));
            let label = (self.label)(value);
            svg.text((place.x - 6.0, y + 4.0), 10.0, (FAINT, Anchor::End), &label);
        }
        let mut below = vec![0.0; self.intervals.len()];
        for band in &self.bands {
            self.band(svg, place, band, &mut below);
        }
        for line in &self.lines {
            let edge = |at: usize, level: f64| {
                let it = self.intervals[at];
                [(place.at(it.from), level), (place.at(it.to), level)]
            };
            let levels = line.values.iter().map(|value| place.level(*value, self.top));
            let points: Vec<_> = levels.enumerate().flat_map(|(at, y)| edge(at, y)).collect();
            svg.line(&points, line.colour, (1.5, "5 3"));
        }
        self.legend(svg, place);
    }

    /// A band above those below it, one area for each stretch without a gap.
    fn band(&self, svg: &mut Svg, place: Place, band: &Band, below: &mut [f64]) {
        let mut from = 0;
        while from < self.intervals.len() {
            let follows = |at: &usize| self.intervals[*at].from - self.intervals[at - 1].to < 0.5;
            let to = (from + 1..self.intervals.len()).take_while(follows).last().unwrap_or(from);
            let edge = |at: usize, value: f64| {
                let (it, y) = (self.intervals[at], place.level(value, self.top));
                [(place.at(it.from), y), (place.at(it.to), y)]
            };
            let upper = (from..=to).flat_map(|at| edge(at, below[at] + band.values[at]));
            let mut points: Vec<_> = upper.collect();
            let lower: Vec<_> = (from..=to).flat_map(|at| edge(at, below[at])).collect();
            points.extend(lower.into_iter().rev());
            svg.area(&points, band.colour, 0.85);
            from = to + 1;
        }
        below.iter_mut().zip(&band.values).for_each(|(below, value)| *below += value);
    }

    /// Names, the uppermost band first, as the eye meets them.
    fn legend(&self, svg: &mut Svg, place: Place) {
        let x = place.x + place.width + 16.0;
        let mut y = place.y + 6.0;
        for line in &self.lines {
            svg.line(&[(x, y - 4.0), (x + 10.0, y - 4.0)], line.colour, (1.5, "5 3"));
            svg.text((x + 16.0, y), 11.0, (TEXT, Anchor::Start), &line.name);
            y += LINE;
        }
        let rows = ((place.height - (y - place.y)) / LINE).max(1.0) as usize;
        let shown = if self.bands.len() > rows { rows - 1 } else { self.bands.len() };
        for band in self.bands.iter().rev().take(shown) {
            svg.rect((x, y - 8.0), (10.0, 9.0), band.colour, None);
            svg.text((x + 16.0, y), 11.0, (TEXT, Anchor::Start), &crate::text::cut(&band.name, 22));
            svg.text((x + 320.0, y), 11.0, (FAINT, Anchor::End), &band.note);
            y += LINE;
        }
        if self.bands.len() > shown {
            let more = format!("and {} more", self.bands.len() - shown);
            svg.text((x + 16.0, y), 11.0, (FAINT, Anchor::Start), &more);
        }
    }
}
