//! How long programs that need memory wait for a daemon that was killed and started again.
//!
//! Sixteen programs with a slice each are told to allocate while no daemon runs, and wait. Then a daemon starts,
//! restores the slices from their records, and grants what they ask for. The time is from that start until the first of
//! them has its memory, and until all have. A service manager's own pause is not in it.

use crate::node::Node;
use crate::{Error, Pace, Row};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const PROGRAMS: usize = 16;
/// More than a program has in credit once it has been idle.
const TAKEN: u64 = 256 << 20;
/// A program that is idle this long has returned its credit.
const IDLE: Duration = Duration::from_millis(700);
/// A program that had credit would have answered by then.
const WAITS: Duration = Duration::from_millis(20);
/// Time limit for every answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bound on the first grant, ms.
const FIRST: f64 = 200.0;
/// Bound on what a program waits, ms.
const LAST: f64 = 500.0;

/// A program that allocates when it is told to.
pub struct Program {
    child: Child,
    orders: ChildStdin,
}

impl Program {
    /// Starts one in a slice, which tells what it did to `told`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(node: &Node, told: Sender<(Instant, String)>) -> Result<Program, Error> {
        let mut command = node.command(0, ("", "churn 1 1 2097152 1 0"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().ok_or("no pipe")?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = told.send((Instant::now(), line)); // fails when the bench has ended
            }
        });
        Ok(Program { child, orders })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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

/// Gives all programs an order, and waits until they have done it.
///
/// # Errors
/// One answers something else, or nothing.
pub fn order(
    programs: &mut [Program],
    what: &str,
    answers: &Receiver<(Instant, String)>,
    done: &str,
) -> Result<(), Error> {
    for program in &mut *programs {
        writeln!(program.orders, "{what}")?;
    }
    gather(answers, done, programs.len()).map(|_| ())
}

/// When each of so many programs answered; all answers must begin so.
///
/// # Errors
/// One answers something else, or nothing.
pub fn gather(
    answers: &Receiver<(Instant, String)>,
    begin: &str,
    programs: usize,
) -> Result<Vec<Instant>, Error> {
    let one = |_| match answers.recv_timeout(PATIENCE) {
        Ok((at, answer)) if answer.starts_with(begin) => Ok(at),
        Ok((_, answer)) => Err(format!("{answer}, not {begin}").into()),
        Err(_) => Err("a program does not answer".into()),
    };
    (0..programs).map(one).collect()
}
