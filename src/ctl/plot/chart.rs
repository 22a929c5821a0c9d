//! Charts of the last minutes as SVG: what each slice got of its GPUs, or where one slice's time went. Pure.

use super::panel::{Band, Interval, Panel, Place, Steps};
use crate::past::{Past, Series, part};
use crate::svg::{Anchor, FAINT, GRID, SANS, SERIES, Svg, TEXT};
use crate::why::percent;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::samples::Sample;
use gpuslice_wire::units::Bytes;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

const LEFT: f64 = 64.0;
const WIDTH: f64 = 760.0;
const LEGEND: f64 = 352.0;
const TALL: f64 = 190.0;
const SMALL: f64 = 90.0;
const GAP: f64 = 46.0;

/// The parts of a slice's wall time, from below: name, colour, µs.
type Cause = (&'static str, &'static str, fn(&Sample) -> u64);

/// What is below is good; what is above keeps the slice from the GPU; idle time is pale.
const CAUSES: [Cause; 12] = [
    ("running", "#4fb286", |it| it.running_us.into()),
    ("hand-over", "#a7c957", |it| it.handover_us.into()),
    ("queue", "#e8a33d", |it| it.wait_us[0].into()),
    ("higher class", "#d98032", |it| it.wait_us[1].into()),
    ("long kernels", "#e06c5b", |it| it.wait_us[2].into()),
    ("no drain", "#b8433a", |it| it.wait_us[3].into()),
    ("others' gangs", "#d46a9f", |it| it.wait_us[4].into()),
    ("own limit", "#9d7fd1", |it| it.limited_us.into()),
    ("own gang", "#7a6bb0", |it| it.gang_us.into()),
    ("idle", "#3a4350", |it| it.idle_us.into()),
    ("suspended", "#4a6a8a", |it| it.suspended_us.into()),
    ("daemon away", "#5b6675", |it| it.absent_us.into()),
];

/// What a chart says of a GPU.
pub struct GpuFacts {
    /// Identity.
    pub uuid: GpuUuid,
    /// Its name.
    pub called: String,
    /// Its memory, bytes.
    pub memory: u64,
}

/// The sum of all intervals' lengths and of `of` over a series, as a part, 0..=1.
pub fn mean<'a>(samples: impl Iterator<Item = &'a Sample>, of: fn(&Sample) -> u64) -> f64 {
    let (mut all, mut sum) = (0u64, 0u64);
    for sample in samples {
        all += u64::from(sample.length_us);
        sum += of(sample);
    }
    sum as f64 / all.max(1) as f64
}

/// Time due in an interval, µs.
pub fn due_us(sample: &Sample) -> u64 {
    u64::from(sample.length_us) * u64::from(sample.due_ppm) / 1_000_000
}

fn gib(value: f64) -> String {
    Bytes(value.round() as u64).to_string()
}

fn whole(value: f64) -> String {
    format!("{:.0} %", 100.0 * value)
}

/// An SVG with a page for `panels`, and its head.
struct Page {
    svg: Svg,
    y: f64,
    seconds: f64,
}

impl Page {
    fn new(past: &Past, seconds: f64, (title, height): (&str, f64)) -> Page {
        let mut svg = Svg::new(LEFT + WIDTH + LEGEND, height + 92.0);
        svg.text((LEFT, 30.0), 17.0, (TEXT, Anchor::Start), title);
        let until = UNIX_EPOCH + Duration::from_nanos(past.unix_ns);
        let until = humantime::format_rfc3339_seconds(until);
        svg.text((LEFT + WIDTH, 30.0), 11.0, (FAINT, Anchor::End), &format!("until {until}"));
        Page { svg, y: 68.0, seconds }
    }

    fn panel(&mut self, panel: &Panel, height: f64) {
        let place = Place { x: LEFT, y: self.y, width: WIDTH, height, seconds: self.seconds };
        panel.draw(&mut self.svg, place);
        self.y += height + GAP;
    }

    /// Draws the axis of time, and ends the picture.
    fn finish(mut self) -> String {
        let y = self.y - GAP + 16.0;
        let step = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
        let step = step.into_iter().find(|step| self.seconds / step <= 11.0).unwrap_or(600.0);
        let mut before = 0.0;
        while before <= self.seconds {
            let x = LEFT + WIDTH * (1.0 - before / self.seconds);
            let label = match before as u64 {
                0 => "now".to_owned(),
                it if it % 60 == 0 => format!("-{} min", it / 60),
                it => format!("-{it} s"),
            };
            self.svg.line(&[(x, y - 16.0), (x, y - 11.0)], GRID, (1.0, ""));
            self.svg.text((x, y + 2.0), 10.0, (FAINT, Anchor::Middle), &label);
            before += step;
        }
        self.svg.finish(SANS)
    }
}

/// The intervals of some series, in order, and each one's number by its end.
fn intervals(all: &[&Series], now_ns: u64) -> (Vec<Interval>, BTreeMap<u64, usize>) {
    let samples = all.iter().flat_map(|it| &it.samples);
    let ends: BTreeMap<u64, u32> = samples.map(|it| (it.end_ns, it.length_us)).collect();
    let before = |ns: u64| -(now_ns.saturating_sub(ns) as f64) / 1e9;
    let interval = |(end, us): (&u64, &u32)| Interval {
        from: before(end.saturating_sub(u64::from(*us) * 1_000)),
        to: before(*end),
    };
    let intervals = ends.iter().map(interval).collect();
    (intervals, ends.keys().enumerate().map(|(at, end)| (*end, at)).collect())
}

fn values(series: &Series, places: &BTreeMap<u64, usize>, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    let mut values = vec![0.0; places.len()];
    for sample in &series.samples {
        if let Some(at) = places.get(&sample.end_ns) {
            values[*at] = of(sample);
        }
    }
    values
}

/// The chart of a node: for each GPU what its slices got, and their memory.
pub fn node(past: &Past, gpus: &[GpuFacts], seconds: f64) -> String {
    let height = gpus.len().max(1) as f64 * (TALL + SMALL + 2.0 * GAP);
    let mut page = Page::new(past, seconds, ("GPU time and memory of slices", height));
    for gpu in gpus {
        let all = past.on(gpu.uuid);
        let (intervals, places) = intervals(&all, past.now_ns);
        let band = |(at, it): (usize, &&Series), values: Vec<f64>, note: String| Band {
            name: it.name.clone(),
            note,
            colour: SERIES[at % SERIES.len()],
            values,
        };
        let got = all.iter().enumerate().map(|(at, it)| {
            let got = mean(it.samples.iter(), |it| it.got_us.into());
            let due = mean(it.samples.iter(), due_us);
            let wait = mean(it.samples.iter(), Sample::waited_us);
            let [got, due, wait] = [got, due, wait].map(percent);
            let note = format!("got {got}, due {due}, waited {wait}");
            let values = values(it, &places, |it| part(it, it.got_us.into()));
            band((at, it), values, note)
        });
        page.panel(
            &Panel {
                title: format!("{}: part of the time that each slice got", gpu.called),
                top: 1.0,
                label: whole,
                intervals: intervals.clone(),
                bands: got.collect(),
                lines: Vec::new(),
            },
            TALL,
        );
        let memory = all.iter().enumerate().map(|(at, it)| {
            let last = it.samples.back().map_or(Bytes(0), |it| it.memory);
            let note = format!("{last} of {}", Bytes(it.cap));
            band((at, it), values(it, &places, |it| it.memory.0 as f64), note)
        });
        page.panel(
            &Panel {
                title: format!("memory held, of {}", Bytes(gpu.memory)),
                top: gpu.memory.max(1) as f64,
                label: gib,
                intervals,
                bands: memory.collect(),
                lines: Vec::new(),
            },
            SMALL,
        );
    }
    page.finish()
}

/// The chart of one container: for each of its GPUs what it got and was due, and where its time went.
pub fn slice(past: &Past, gpus: &[GpuFacts], seconds: f64) -> String {
    let all: Vec<(&GpuFacts, &Series)> = gpus
        .iter()
        .flat_map(|gpu| past.on(gpu.uuid).into_iter().map(move |it| (gpu, it)))
        .collect();
    let name = all.first().map_or(String::new(), |(_, it)| it.name.clone());
    let height = all.len().max(1) as f64 * (TALL + 2.0 * SMALL + 3.0 * GAP);
    let mut page = Page::new(past, seconds, (&name, height));
    for (gpu, it) in all {
        let (intervals, places) = intervals(&[it], past.now_ns);
        let mean = |of| percent(mean(it.samples.iter(), of));
        let band = |(name, colour, of): Cause| Band {
            name: name.to_owned(),
            note: mean(of),
            colour,
            values: values(it, &places, |it| part(it, of(it))),
        };
        let got = ("got", SERIES[0], (|it| it.got_us.into()) as fn(&Sample) -> u64);
        let due = values(it, &places, |it| part(it, due_us(it)));
        let panel = |title, top, label, bands, lines| Panel {
            title,
            top,
            label,
            intervals: intervals.clone(),
            bands,
            lines,
        };
        let name = format!("due {}", mean(due_us));
        let lines = vec![Steps { name, colour: TEXT, values: due }];
        let title = format!("{}: GPU time", gpu.called);
        page.panel(&panel(title, 1.0, whole, vec![band(got)], lines), SMALL);
        let known = |(.., of): &Cause| it.samples.iter().any(|sample| of(sample) > 0);
        let causes = CAUSES.into_iter().filter(known).map(band).collect();
        let title = "where its time went".to_owned();
        page.panel(&panel(title, 1.0, whole, causes, Vec::new()), TALL);
        let held = Band {
            name: "held".to_owned(),
            note: it.samples.back().map_or(String::new(), |it| it.memory.to_string()),
            colour: SERIES[2],
            values: values(it, &places, |it| it.memory.0 as f64),
        };
        let title = format!("memory, cap {}", Bytes(it.cap));
        page.panel(&panel(title, it.cap.max(1) as f64, gib, vec![held], Vec::new()), SMALL);
    }
    page.finish()
}
