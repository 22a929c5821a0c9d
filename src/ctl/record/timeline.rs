//! A recording as a timeline in SVG: a lane for each slice of each GPU, a bar for each stretch. Pure.
//!
//! Many turns are narrower than a pixel in a long recording. Bars of a lane that would touch each other within half a
//! pixel are drawn as one. Its opacity is the part of the time that they fill: no turn is lost, and none looks longer
//! than it is.

use super::{Recording, Stretch, Sums};
use crate::svg::{Anchor, FAINT, GRID, SANS, Svg, TEXT};
use crate::text::{counted, cut};
use crate::why::{duration, percent};
use gpuslice_wire::turns::TurnKind;

const LEFT: f64 = 150.0;
const WIDTH: f64 = 1_000.0;
const RIGHT: f64 = 300.0;
const LANE: f64 = 26.0;
const HEAD: f64 = 30.0;
/// Turns; none of these looks like the colours of drains and overruns.
const LANES: [&str; 6] = ["#4e9bd6", "#4fb286", "#9d7fd1", "#57b8c4", "#c9c04a", "#8f9bb3"];
/// Drains and overruns.
const LATE: [&str; 2] = ["#e8a33d", "#e0503f"];

/// What is drawn in a place: one stretch, or several that are narrower than half a pixel.
struct Bar {
    from: f64,
    to: f64,
    filled: f64,
    last: Stretch,
    count: usize,
}

/// The timeline.
pub fn timeline(recording: &Recording) -> String {
    let lanes: usize = recording.gpus.iter().map(|(gpu, _)| recording.on(*gpu).len()).sum();
    let gpus = recording.gpus.iter().filter(|(gpu, _)| !recording.on(*gpu).is_empty());
    let height = 76.0 + lanes as f64 * LANE + gpus.clone().count() as f64 * HEAD;
    let mut svg = Svg::new(LEFT + WIDTH + RIGHT, height + 10.0);
    let title = format!("turns of {}", duration(recording.length));
    svg.text((20.0, 30.0), 17.0, (TEXT, Anchor::Start), &title);
    legend(&mut svg);
    let mut y = 52.0;
    let bottom = height - 24.0;
    axis(&mut svg, recording.length, (y, bottom));
    for (gpu, called) in gpus {
        y += HEAD;
        svg.text((20.0, y - 8.0), 13.0, (TEXT, Anchor::Start), called);
        for (at, (number, track)) in recording.on(*gpu).into_iter().enumerate() {
            let colour = LANES[at % LANES.len()];
            let name = cut(&track.name, 18);
            svg.text((LEFT - 10.0, y + 16.0), 12.0, (TEXT, Anchor::End), &name);
            lane(&mut svg, recording, (number, colour), y);
            let sums = recording.sums(number);
            svg.text(
                (LEFT + WIDTH + 14.0, y + 16.0),
                11.0,
                (FAINT, Anchor::Start),
                &note(recording, sums),
            );
            y += LANE;
        }
    }
    svg.finish(SANS)
}

fn note(recording: &Recording, sums: Sums) -> String {
    let part = percent(sums.gpu_ns as f64 / recording.length.max(1) as f64);
    let longest = duration(sums.longest);
    format!("{}, got {part}, longest {longest}", counted(sums.turns, "turn"))
}

fn legend(svg: &mut Svg) {
    let mut x = LEFT + WIDTH - 330.0;
    for (name, colour) in [("turn", LANES[0]), ("drain", LATE[0]), ("overrun", LATE[1])] {
        svg.rect((x, 20.0), (10.0, 10.0), colour, None);
        svg.text((x + 15.0, 29.0), 11.0, (FAINT, Anchor::Start), name);
        x += 80.0;
    }
    svg.text((x, 29.0), 11.0, (FAINT, Anchor::Start), "half height: no turns");
}

fn axis(svg: &mut Svg, length: u64, (top, bottom): (f64, f64)) {
    let steps = [1, 2, 5].into_iter().flat_map(|n| (0..=10).map(move |power| n * 10u64.pow(power)));
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable();
    let step = steps.into_iter().find(|step| length / step <= 10).unwrap_or(length.max(1));
    for at in (0..=length).step_by(step as usize) {
        let x = LEFT + WIDTH * at as f64 / length.max(1) as f64;
        svg.line(&[(x, top), (x, bottom)], GRID, (1.0, ""));
        let label = if at == 0 { "0".to_owned() } else { duration(at) };
        svg.text((x, bottom + 16.0), 10.0, (FAINT, Anchor::Middle), &label);
    }
}

/// Places of a lane's stretches of one kind, joined where they are too narrow to be seen.
fn bars(recording: &Recording, track: u32, kind: TurnKind) -> Vec<Bar> {
    let scale = WIDTH / recording.length.max(1) as f64;
    let mut bars: Vec<Bar> = Vec::new();
    for it in recording.rows.iter().filter(|it| it.track == track && it.kind == kind) {
        let (from, to) = (it.from as f64 * scale, it.to as f64 * scale);
        match bars
            .last_mut()
            .filter(|bar| to - bar.from < 0.5 || from - bar.to < 0.5 && to - from < 0.5)
        {
            Some(bar) => {
                (bar.to, bar.last) = (to, *it);
                (bar.filled, bar.count) = (bar.filled + to - from, bar.count + 1);
            }
            None => bars.push(Bar { from, to, filled: to - from, last: *it, count: 1 }),
        }
    }
    bars
}

fn lane(svg: &mut Svg, recording: &Recording, (track, colour): (u32, &'static str), y: f64) {
    svg.line(&[(LEFT, y + LANE - 1.0), (LEFT + WIDTH, y + LANE - 1.0)], GRID, (1.0, ""));
    for kind in [TurnKind::Open, TurnKind::Turn, TurnKind::Drain, TurnKind::Overrun] {
        let (fill, top) = match kind {
            TurnKind::Turn => (colour, 4.0),
            TurnKind::Open => (colour, 13.0),
            TurnKind::Drain => (LATE[0], 4.0),
            TurnKind::Overrun => (LATE[1], 4.0),
        };
        for bar in bars(recording, track, kind) {
            let width = (bar.to - bar.from).max(0.5);
            let place = ((LEFT + bar.from, y + top), (width, LANE - 4.0 - top));
            let title = match bar.count {
                1 => {
                    let (it, length) = (bar.last, duration(bar.last.to - bar.last.from));
                    format!(
                        "{} of {length} at {}, charged {}",
                        it.kind.name(),
                        duration(it.from),
                        duration(it.gpu_ns)
                    )
                }
                count => {
                    format!("{count} of kind {}, until {}", kind.name(), duration(bar.last.to))
                }
            };
            let part = (bar.filled / width).clamp(0.15, 1.0);
            svg.faint_rect(place.0, place.1, (fill, part), &title);
        }
    }
}
