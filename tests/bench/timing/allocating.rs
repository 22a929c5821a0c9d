//! Programs in slices that allocate when they are told to.

use crate::Error;
use crate::node::Node;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Time limit for every answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program that allocates when it is told to.
pub struct Program {
    child: Child,
    /// Its orders, a line each.
    pub orders: ChildStdin,
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
