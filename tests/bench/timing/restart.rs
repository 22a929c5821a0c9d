//! How long programs that need memory wait for a daemon that was killed and started again.
//!
//! Sixteen programs with a slice each are told to allocate while no daemon runs, and wait. Then a daemon starts,
//! restores the slices from their records, and grants what they ask for. The time is from that start until the first of
//! them has its memory, and until all have. A service manager's own pause is not in it.

use crate::allocating::{Program, gather, order};
use crate::node::Node;
use crate::{Error, Pace, Row};
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const PROGRAMS: usize = 16;
/// More than a program has in credit once it has been idle.
const TAKEN: u64 = 256 << 20;
/// A program that is idle this long has returned its credit.
const IDLE: Duration = Duration::from_millis(700);
/// A program that had credit would have answered by then.
const WAITS: Duration = Duration::from_millis(20);
/// Bound on the first grant, ms.
const FIRST: f64 = 200.0;
/// Bound on what a program waits, ms.
const LAST: f64 = 500.0;

/// Rows of the first and of the last grant.
///
/// # Errors
/// A node does not work, or a program is refused its memory.
pub fn measure(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut node = Node::start(parts, 1)?;
    let (told, answers) = channel();
    let start = |_| Program::start(&node, told.clone());
    let mut programs: Vec<Program> = (0..PROGRAMS).map(start).collect::<Result<_, _>>()?;
    gather(&answers, "ready", PROGRAMS)?;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let rounds = if pace.is_quick() { 20 } else { 100 };
    for _ in 0..rounds {
        order(&mut programs, "drop", &answers, "dropped")?;
        std::thread::sleep(IDLE);
        node.kill_daemon()?;
        for program in &mut programs {
            writeln!(program.orders, "take {TAKEN}")?;
        }
        std::thread::sleep(WAITS);
        if let Ok((_, answer)) = answers.try_recv() {
            return Err(format!("a program did not wait for the daemon: {answer}").into());
        }
        let began = Instant::now();
        node.start_daemon()?;
        let mut took = gather(&answers, "took 0 ", PROGRAMS)?;
        took.sort();
        let ms = |at: &Instant| at.duration_since(began).as_secs_f64() * 1e3;
        first.extend(took.first().map(ms));
        last.extend(took.last().map(ms));
    }
    Ok(vec![
        Row::of("restart to the first grant", "ms", first, FIRST),
        Row::of("restart to the grants of all 16", "ms", last, LAST),
    ])
}
