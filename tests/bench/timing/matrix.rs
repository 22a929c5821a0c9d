//! Two tenants of weights 1 and 3 that launch kernels, wait for them and pause: every length of a kernel beside every
//! length of a pause, with one launch before each wait and with 32.
//!
//! Each cell has a node of its own. The heavier tenant runs alone first, and then both. All figures are the simulated
//! device's own account; [`due`](crate::due) says what is judged.
//!
//! # Processors
//! The simulated GPU's kernels need no processor: the device computes their ends from the clock, and a process sleeps
//! until then. A launch, the wake-up at a kernel's end and the end of a pause do need one: 0.02 to 0.1 ms together on
//! two cores. All three lengthen a pause, alone as beside the other tenant. So a cell is judged by what its load gets
//! alone in the same minute.
//!
//! Where that is less than the heavier tenant's part although the load could use more, the cell is marked `cpu` and
//! judged as one whose tenant cannot use its due. It happens to kernels of 50 µs and to 1 ms with a pause of 0.3 ms,
//! both with one launch. On a machine with other work, `--real-time` keeps that work out of the figures.

use crate::due::Division;
use crate::node::Node;
use crate::{Error, Pace, Row};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const KERNELS_US: [u64; 5] = [50, 200, 1_000, 5_000, 20_000];
const PAUSES_US: [u64; 5] = [0, 20, 100, 300, 1_000];
const LAUNCHES: [u64; 2] = [1, 32];
/// The lighter tenant's part, and the heavier one's.
const PARTS: [f64; 2] = [0.25, 0.75];

/// Bound on the deviation of a cell, percent of what is due; and on that of most cells.
const OFF_MAX: f64 = 5.0;
const OFF_MOST: f64 = 2.0;
/// Percent of cells within [`OFF_MOST`].
const MOST: f64 = 95.0;
/// Percent of what one gets alone that both get together.
const TOGETHER: f64 = 97.0;

/// A load, and how the GPU was divided between two of it.
struct Cell {
    kernel_us: u64,
    pause_us: u64,
    launches: u64,
    division: Division,
}

impl Cell {
    fn kept(&self) -> bool {
        self.division.off() <= OFF_MAX && self.division.together() >= TOGETHER
    }

    fn as_json(&self) -> Value {
        let (off, together) = (self.division.off(), self.division.together());
        json!({
            "kernel_us": self.kernel_us, "pause_us": self.pause_us, "launches": self.launches,
            "load": self.division.load[1], "alone": self.division.alone[1],
            "got": self.division.got, "competes": self.division.competes(),
            "cpu": self.division.is_limited_by_processors(),
            "off": off, "together": together, "missed": !self.kept(),
        })
    }

    fn tell(&self) {
        let of = &self.division;
        let percent = |part: f64| 100.0 * part;
        let how = match (of.competes(), of.is_limited_by_processors()) {
            (true, _) => "competes",
            (_, true) => "cpu",
            _ => "cannot use its due",
        };
        eprintln!(
            "{:>7.2} {:>6.2} {:>4}  {:>6.1}  {:>5.1} : {:<5.1} {:>7.1} {:>9.1}  {:<18} {}",
            self.kernel_us as f64 / 1e3,
            self.pause_us as f64 / 1e3,
            self.launches,
            percent(of.alone[1]),
            percent(of.got[0]),
            percent(of.got[1]),
            of.off(),
            of.together(),
            how,
            if self.kept() { "kept" } else { "MISSED" }
        );
    }
}

/// All cells, as JSON, and the rows that judge them. A quick run takes every fourth cell, in an order in which all
/// kernels, pauses and numbers of launches occur.
///
/// # Errors
/// A node does not work.
pub fn measure(parts: &Path, pace: Pace) -> Result<(Vec<Row>, Value), Error> {
    eprintln!("two tenants 1:3 that wait for their kernels; percent of the device's time");
    eprintln!(" kernel  pause launches alone    got          % off  together  judged as");
    let mut cells = Vec::new();
    for (row, kernel_us) in KERNELS_US.into_iter().enumerate() {
        for (column, pause_us) in PAUSES_US.into_iter().enumerate() {
            for (at, launches) in LAUNCHES.into_iter().enumerate() {
                if pace.is_quick() && (row + 2 * column + at) % 4 != 0 {
                    continue;
                }
                let division = one(parts, pace, [kernel_us, pause_us, launches])?;
                let cell = Cell { kernel_us, pause_us, launches, division };
                cell.tell();
                cells.push(cell);
            }
        }
    }
    Ok((rows(&cells), cells.iter().map(Cell::as_json).collect()))
}

/// A cell's division.
fn one(parts: &Path, pace: Pace, load: [u64; 3]) -> Result<Division, Error> {
    let [kernel_us, pause_us, launches] = load;
    let program = format!(
        "loads steps --seconds 600 --kernel-us {kernel_us} --pause-us {pause_us} --launches {launches}"
    );
    let mut node = Node::start(parts, 1)?;
    let heavy = node.tenant(0, ("--weight 3", &program))?;
    std::thread::sleep(Duration::from_millis(200));
    let alone = node.parts_of(&[heavy], pace.at_least(0.8, 0.5))[0];
    let light = node.tenant(0, ("", &program))?;
    // What both launched before their turns and kernels were known is paid back first.
    let batch = Duration::from_micros(kernel_us * launches);
    std::thread::sleep(Duration::from_millis(500).max(4 * batch));
    // A window begins and ends within a turn of one kernel at least: that is 1 % of what is due to the lighter one.
    let kernels = 400.0 * kernel_us as f64 / 1e6;
    let got = node.parts_of(&[light, heavy], pace.at_least(2.5_f64.max(kernels), kernels.max(1.5)));
    let busy = (kernel_us * launches) as f64;
    let could = busy / (busy + pause_us as f64);
    Ok(Division { part: PARTS.into(), load: vec![could; 2], alone: vec![alone; 2], got })
}

/// The rows that judge these cells.
fn rows(cells: &[Cell]) -> Vec<Row> {
    let those = |competing: bool| {
        let all = cells.iter().map(|cell| &cell.division);
        all.filter(move |it| it.competes() == competing)
    };
    let off = |competing: bool| those(competing).map(Division::off).collect::<Vec<_>>();
    let all = off(true);
    let within = all.iter().filter(|off| **off <= OFF_MOST).count();
    let within = 100.0 * within as f64 / all.len() as f64;
    let together = cells.iter().map(|cell| cell.division.together()).collect();
    vec![
        Row::of("matrix: competing cells, off their due", "%", all.clone(), OFF_MAX),
        Row::least("matrix: of these within 2 %", "% of", vec![within], MOST),
        Row::of("matrix: other cells, below their due", "%", off(false), OFF_MAX),
        Row::least("matrix: both, of one alone (worst)", "%", together, TOGETHER),
    ]
}
