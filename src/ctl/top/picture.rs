//! Pictures of the screen under `docs/pictures`, from the cells that the tests draw.
//!
//! The pictures are checked in, and a test compares them with what is drawn now: a document never shows an old screen.
//! After a change of the screen, `GPUSLICE_PICTURES=1 cargo test -p gpuslice-ctl pictures` writes them anew.

use super::model::{Model, Processes};
use super::screen::CHOSEN;
use super::tests::{drawn, press};
use crate::past::tests::{Slice, build, busy, idle};
use crate::processes::Process;
use crate::svg::{PAGE, Svg, TEXT};
use crate::table::tests::{gpu, slice};
use crate::table::{DaemonState, Gpu, Row, View};
use crate::wall_time::WallTime;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::policy::{Class, ClassCaps};
use gpuslice_wire::samples::Sample;
use gpuslice_wire::units::{Bytes, Percent};
use gpuslice_wire::waits::{WaitBehind, WaitCause};
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use unicode_width::UnicodeWidthStr;

const MONO: &str = "'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace";
/// Pixels of a cell.
const CELL: (f64, f64) = (8.4, 18.0);
/// Pixels around the screen.
const MARGIN: f64 = 14.0;

const S: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

fn colour(colour: Color, default: &'static str) -> &'static str {
    match colour {
        Color::Red => "#f0776b",
        Color::Green => "#6cc48f",
        Color::Yellow => "#e5c060",
        Color::Blue => "#74aee8",
        Color::Cyan => "#62c4cf",
        Color::Magenta => "#cf8fd0",
        Color::DarkGray => "#7b8592",
        Color::White => "#f2f5f8",
        CHOSEN => "#333c48",
        _ => default,
    }
}

/// Foreground, background and style of a cell.
fn look(cell: &Cell) -> (&'static str, &'static str, &'static str) {
    let (mut front, mut back) = (colour(cell.fg, TEXT), colour(cell.bg, PAGE));
    if cell.modifier.contains(Modifier::REVERSED) {
        (front, back) = (back, front);
    }
    let bold = cell.modifier.contains(Modifier::BOLD);
    (front, back, if bold { r#" font-weight="bold""# } else { "" })
}

/// How many eighths of a cell a block of a sparkline fills, from below.
fn eighths(symbol: &str) -> Option<u32> {
    let c = symbol.chars().next().filter(|c| ('\u{2581}'..='\u{2588}').contains(c))?;
    Some(u32::from(c) - 0x2580)
}

/// The screen as a picture.
fn picture(buffer: &Buffer) -> String {
    let (columns, rows) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let size = (columns as f64 * CELL.0 + 2.0 * MARGIN, rows as f64 * CELL.1 + 2.0 * MARGIN);
    let mut svg = Svg::new(size.0, size.1);
    for (row, line) in buffer.content.chunks(columns).enumerate() {
        let y = MARGIN + row as f64 * CELL.1;
        let mut at = 0;
        while at < columns {
            let same = |cell: &&Cell| {
                look(cell) == look(&line[at])
                    && eighths(cell.symbol()) == eighths(line[at].symbol())
            };
            let len = line[at..].iter().take_while(same).count().max(1);
            draw(&mut svg, (MARGIN + at as f64 * CELL.0, y), &line[at..at + len]);
            at += len;
        }
    }
    svg.finish(MONO)
}

/// Cells of one look.
fn draw(svg: &mut Svg, (x, y): (f64, f64), cells: &[Cell]) {
    let (front, back, style) = look(&cells[0]);
    let width = cells.len() as f64 * CELL.0;
    if back != PAGE {
        svg.rect((x, y), (width, CELL.1), back, None);
    }
    if let Some(eighths) = eighths(cells[0].symbol()) {
        let height = (CELL.1 - 3.0) * f64::from(eighths) / 8.0;
        return svg.rect((x, y + CELL.1 - 1.5 - height), (width, height), front, None);
    }
    if cells[0].modifier.contains(Modifier::UNDERLINED) {
        svg.rect((x, y + CELL.1 - 1.0), (width, 1.0), front, None);
    }
    let mut skip = 0;
    let mut text = String::new();
    for cell in cells {
        if skip == 0 {
            text += cell.symbol();
            skip = cell.symbol().width().max(1);
        }
        skip -= 1;
    }
    // an SVG keeps no row of spaces: each stretch between them has its own place
    let mut at = 0;
    for part in text.split("  ") {
        let blank = part.width() - part.trim_start().width();
        let shown = part.trim();
        if !shown.is_empty() {
            let x = x + (at + blank) as f64 * CELL.0;
            svg.cells((x, y + 13.5), shown.width() as f64 * CELL.0, (front, style), shown);
        }
        at += part.width() + 2;
    }
}

/// A tenant of the pictures.
struct Tenant {
    name: &'static str,
    gpu: u8,
    class: Class,
    weight: Option<u32>,
    share: Option<u32>,
    cap: u64,
    used: u64,
    /// Parts of the time, percent: running, waiting, idle.
    time: [u64; 3],
    /// The container behind which it waits, and why.
    behind: Option<(&'static str, WaitCause)>,
}

const fn tenant(
    name: &'static str,
    gpu: u8,
    (cap, used): (u64, u64),
    time: [u64; 3],
    behind: Option<(&'static str, WaitCause)>,
) -> Tenant {
    let class = Class::Normal;
    Tenant { name, gpu, class, weight: Some(1), share: None, cap, used, time, behind }
}

/// A node with two GPUs: inference beside training, and batch work that waits for both.
fn tenants() -> [Tenant; 9] {
    [
        Tenant {
            class: Class::High,
            weight: None,
            share: Some(25),
            ..tenant("chat-frontend", 1, (16, 14), [23, 4, 73], None)
        },
        Tenant {
            weight: Some(3),
            ..tenant("train-llama", 1, (40, 38), [58, 40, 2], Some(("embed", WaitCause::Queue)))
        },
        tenant("embed", 1, (12, 7), [18, 79, 3], Some(("train-llama", WaitCause::LongKernel))),
        tenant("loader-bound", 1, (8, 5), [1, 0, 99], None),
        Tenant {
            class: Class::BestEffort,
            ..tenant(
                "nightly-eval",
                2,
                (20, 9),
                [12, 88, 0],
                Some(("render", WaitCause::HigherClass)),
            )
        },
        Tenant {
            weight: Some(2),
            ..tenant("render", 2, (24, 21), [55, 43, 2], Some(("simulate", WaitCause::Queue)))
        },
        tenant("simulate", 2, (16, 15), [32, 66, 2], Some(("render", WaitCause::Queue))),
        tenant("asr-batch", 2, (8, 2), [0, 0, 100], None),
        tenant("notebook-7f3c", 2, (8, 0), [0, 0, 100], None),
    ]
}

fn row(it: &Tenant, now: u64, second: u64) -> Row {
    let got = now * it.time[0] / 100;
    Row {
        name: it.name.to_owned(),
        gpu: GpuUuid([it.gpu; 16]),
        class: it.class,
        weight: it.weight,
        share: it.share,
        share_limit: None,
        cap_ppm: 1_000_000,
        cap: Bytes(it.cap * GIB),
        // its processes keep unused credit of 64 MiB each
        reserved: Bytes((it.used * GIB) + (128 << 20) * u64::from(it.used > 0)),
        used: Bytes(it.used * GIB),
        peak: Bytes(it.used * GIB),
        denied: 0,
        denied_need: Bytes(0),
        denied_credit: Bytes(0),
        clients: match it.name {
            "notebook-7f3c" => 0,
            "embed" => 2,
            _ => 1,
        },
        holds: u32::from(matches!(it.name, "train-llama" | "render")),
        runnable_ns: now * (it.time[0] + it.time[1]) / 100,
        turns: 55 * second,
        launches: 4_000 * second,
        ..slice(it.name, 1, None, it.time[2] < 50, got)
    }
}

fn time(it: &Tenant, now: u64) -> WallTime {
    let [running, waiting, idle] = it.time.map(|part| now * part / 100);
    let mut behind = [WaitBehind::default(); 3];
    if let Some((container, cause)) = it.behind {
        let mut by_cause_ns = [0; WaitCause::ALL.len()];
        by_cause_ns[cause as usize] = waiting;
        behind[0] = WaitBehind {
            container: ContainerId::new(container).ok(),
            total_ns: waiting,
            longest_ns: if cause == WaitCause::LongKernel { 1_400_000_000 } else { 24_000_000 },
            cause,
            by_cause_ns,
        };
    }
    let parts = [running, waiting, 0, 0, 0, idle, 0, 0];
    let names =
        ["running", "waiting", "handover", "limited", "gang", "idle", "suspended", "absent"];
    let mut at = 0;
    WallTime {
        container: ContainerId::new(it.name).expect("an id"),
        gpu: GpuUuid([it.gpu; 16]),
        since_ns: 0,
        parts: names.map(|name| {
            at += 1;
            (name, parts[at - 1])
        }),
        behind,
        others_ns: 0,
    }
}

/// A second of the last ten minutes: the tenant began at another time than the others, and its part rises and falls.
fn sample(it: &Tenant, second: u64) -> Sample {
    let phase = (second + 37 * it.name.len() as u64) as f64 / 40.0;
    let part = it.time[0] as f64 / 100.0 * (1.0 + 0.35 * phase.sin());
    let began = 45 * (it.name.len() as u64 % 5);
    let got = if second < began { 0 } else { (part.min(0.97) * 1e6) as u32 };
    if it.time[1] > 0 { busy(got, 500_000) } else { idle(got, 500_000) }
}

fn view(second: u64) -> View {
    let now_ns = second * S;
    let gpu = |uuid, promised| Gpu {
        total: Bytes(80 * GIB),
        promised: Bytes(promised * GIB),
        slices: 4,
        ..gpu(uuid, u32::from(uuid) - 1)
    };
    let all = tenants();
    View {
        now_ns,
        gpus: vec![gpu(1, 76), gpu(2, 76)],
        rows: all.iter().map(|it| row(it, now_ns, second)).collect(),
        times: all.iter().map(|it| time(it, now_ns)).collect(),
        suspensions: BTreeMap::new(),
        unhealthy: BTreeMap::new(),
        frozen: BTreeSet::new(),
        limits: BTreeMap::new(),
        waits: BTreeMap::new(),
        reclaimed: [].into(),
        loads: BTreeMap::new(),
        owners: BTreeMap::new(),
        daemon: Some(daemon()),
    }
}

/// A daemon with the default configuration.
fn daemon() -> DaemonState {
    let [high, normal] = [95, 99].map(|it| Percent::new(it).expect("a percentage"));
    let class_caps = ClassCaps { high, normal };
    DaemonState { started_ns: 0, absent_until_ns: 0, absent_ns: 0, class_caps }
}

/// The processes of `embed`: a server and its worker.
fn processes() -> Vec<Process> {
    let mib = |mib: u64| Bytes(mib << 20);
    let process = |pid, name: &str, used, families: [u64; 5]| Process {
        gpu: GpuUuid([1; 16]),
        pid,
        name: name.into(),
        is_connected: true,
        reserved: mib(used + 64),
        used: mib(used),
        untracked: Bytes(0),
        families: families.map(mib),
        contexts: 1,
        launches: 478_000 * used / 7168,
    };
    vec![
        process(20417, "uvicorn", 1024, [0, 0, 0, 0, 512]),
        process(20433, "python3", 6144, [0, 96, 1536, 3584, 512]),
    ]
}

fn model() -> Model {
    let mut model = Model::new(view(100));
    (101..240).for_each(|second| model.see(view(second)));
    let all = tenants();
    let samples: Vec<_> = all.iter().map(|it| move |second| sample(it, second)).collect();
    let slices = all.iter().zip(&samples);
    let slices: Vec<Slice<'_>> = slices.map(|(it, of)| (it.name, it.gpu, of as _)).collect();
    model.past = build(&slices, 600);
    model
}

/// Compares a picture with the one that is checked in, or writes it.
pub(crate) fn assert_picture(name: &str, picture: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures").join(name);
    if std::env::var_os("GPUSLICE_PICTURES").is_some() {
        return std::fs::write(&path, picture).expect("a picture is written");
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        known == picture,
        "{name} differs: GPUSLICE_PICTURES=1 cargo test -p gpuslice-ctl pictures"
    );
}

#[test]
fn pictures_show_the_screen_of_today() {
    let mut model = model();
    press(&mut model, "jj");
    model.processes = Processes::Of("embed".into(), processes());
    for size in [(80, 24), (120, 40), (200, 50)] {
        let name = format!("top-{}x{}.svg", size.0, size.1);
        assert_picture(&name, &picture(&drawn(&model, size, true)));
    }
    press(&mut model, "/embed\n\n");
    for size in [(80, 24), (120, 40)] {
        let name = format!("top-detail-{}x{}.svg", size.0, size.1);
        assert_picture(&name, &picture(&drawn(&model, size, true)));
    }
}
