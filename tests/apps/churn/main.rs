//! A tenant that allocates and frees memory of every kind, in many threads, on command.
//!
//! A cap must hold whatever a program does, so this one is unusual: its threads allocate plain (0),
//! pitched (1), managed (2), stream-ordered (3), virtual (4) and array (5) memory at random, free each
//! other's, and go on when they are refused. It reads commands from standard input, a line each, and
//! answers each with a line:
//!
//! * `go N`: every thread does N operations; `did OPERATIONS REFUSED HELD MANAGED`, in bytes
//! * `take BYTES`: one allocation; `took RESULT NANOSECONDS`
//! * `fill BYTES`: allocations of that size until one is refused; `filled COUNT RESULT NANOSECONDS`, of the refused one
//! * `info`: `info FREE TOTAL`, as cuMemGetInfo says
//! * `drop`: gives everything back; `dropped`
//! * `hangup`: closes all sockets there are; `hung COUNT`, of the connections among them
//! * `look`: asks NVML what there is; `looked 1`, or 0 if it does not answer
//! * `fork`: makes a child that keeps all that it inherits and does nothing; `forked PID`
//!
//! `churn SEED THREADS UNIT MOST [KINDS]`: sizes are 1 to MOST times UNIT bytes; KINDS are digits as
//! above, all of them when not given. It ends when its input does. An answer of the driver that is
//! neither success nor out of memory ends it with a complaint.

mod item;
mod odd;

use gpuslice_apps::driver::Error;
use gpuslice_nvabi::types::{CUcontext, CUstream};
use item::{Cuda, Item};
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Allocations a thread has at most.
const LIVE: usize = 12;

/// What all threads share.
struct Process {
    cuda: Cuda,
    context: CUcontext,
    /// Sizes are multiples of it, up to `most` of them.
    unit: u64,
    most: u64,
    /// Kinds of memory to take.
    kinds: Vec<u64>,
    /// What threads leave for others to free.
    left: Mutex<Vec<Item>>,
    refused: AtomicU64,
}

/// One thread's own.
struct Hand {
    seed: u64,
    stream: CUstream,
    items: Vec<Item>,
}

impl Hand {
    /// Below `limit` (xorshift64*).
    fn below(&mut self, limit: u64) -> u64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }

    fn step(&mut self, process: &Process) -> Result<(), Error> {
        let choice = self.below(100);
        if choice < 55 && self.items.len() < LIVE {
            let bytes = process.unit * (1 + self.below(process.most));
            let kind = self.below(process.kinds.len() as u64);
            let family = process.kinds[kind as usize];
            match process.cuda.take(family, bytes, self.stream) {
                Ok(item) => self.items.push(item),
                Err(error) if error.is_refusal() => drop(process.refused.fetch_add(1, Relaxed)),
                Err(error) => return Err(error.into()),
            }
        } else if choice < 70 {
            let mut left = process.left.lock().expect("no thread panics");
            let (mine, theirs) = (self.items.pop(), left.pop());
            left.extend(mine);
            self.items.extend(theirs);
        } else if !self.items.is_empty() {
            let which = self.below(self.items.len() as u64) as usize;
            process.cuda.give_back(self.items.swap_remove(which), self.stream)?;
        }
        Ok(())
    }

    fn go(&mut self, process: &Process, steps: u64) -> Result<(), Error> {
        process.cuda.enter(process.context)?;
        (0..steps).try_for_each(|_| self.step(process))?;
        process.cuda.synchronize(self.stream)
    }
}

struct Program {
    process: Process,
    hands: Vec<Hand>,
    operations: u64,
}

impl Program {
    fn start(words: [u64; 4], kinds: Vec<u64>) -> Result<Program, Error> {
        let [seed, threads, unit, most] = words;
        let (cuda, context) = Cuda::start()?;
        let hand = |thread: u64| {
            Ok(Hand {
                seed: ((seed << 8) | thread).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
                stream: cuda.stream()?,
                items: Vec::new(),
            })
        };
        Ok(Program {
            hands: (0..threads).map(hand).collect::<Result<_, Error>>()?,
            process: Process {
                cuda,
                context,
                unit,
                most: most.max(1),
                kinds,
                left: Mutex::default(),
                refused: AtomicU64::new(0),
            },
            operations: 0,
        })
    }

    fn go(&mut self, steps: u64) -> Result<String, Error> {
        let (process, hands) = (&self.process, &mut self.hands);
        std::thread::scope(|scope| {
            let running: Vec<_> =
                hands.iter_mut().map(|hand| scope.spawn(move || hand.go(process, steps))).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
        })?;
        self.operations += steps * self.hands.len() as u64;
        let left = self.process.left.lock().expect("no thread panics");
        let items = || self.hands.iter().flat_map(|hand| &hand.items).chain(&*left);
        let held: u64 = items().map(|item| item.bytes()).sum();
        let managed: u64 = items().filter(|item| item.is_managed()).map(|item| item.bytes()).sum();
        let refused = self.process.refused.load(Relaxed);
        Ok(format!("did {} {refused} {held} {managed}", self.operations))
    }

    /// Takes plain memory; the driver's answer.
    fn take(&mut self, bytes: u64) -> Result<u32, Error> {
        match self.process.cuda.take(0, bytes, CUstream(null_mut())) {
            Ok(item) => {
                self.process.left.lock().expect("no thread panics").push(item);
                Ok(0)
            }
            Err(error) if error.is_refusal() => Ok(2),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, and how long the call took, ns.
    fn timed_take(&mut self, bytes: u64) -> Result<(u32, u128), Error> {
        let start = Instant::now();
        let result = self.take(bytes)?;
        Ok((result, start.elapsed().as_nanos()))
    }

    fn drop_all(&mut self) -> Result<(), Error> {
        let mut left = std::mem::take(&mut *self.process.left.lock().expect("no thread panics"));
        left.extend(self.hands.iter_mut().flat_map(|hand| hand.items.drain(..)));
        let stream = CUstream(null_mut());
        left.into_iter().try_for_each(|item| self.process.cuda.give_back(item, stream))?;
        self.process.cuda.synchronize(stream)?;
        self.process.cuda.trim()
    }

    fn answer(&mut self, order: &str) -> Result<String, String> {
        let (verb, number) = order.split_once(' ').unwrap_or((order, "0"));
        let number: u64 = number.parse().map_err(|_| format!("{order}: no number"))?;
        let text = |error: Error| error.to_string();
        match verb {
            "go" => self.go(number).map_err(text),
            "take" => {
                let (result, ns) = self.timed_take(number).map_err(text)?;
                Ok(format!("took {result} {ns}"))
            }
            "fill" => {
                let mut count = 0;
                loop {
                    match self.timed_take(number).map_err(text)? {
                        (0, _) => count += 1,
                        (result, ns) => return Ok(format!("filled {count} {result} {ns}")),
                    }
                }
            }
            "info" => {
                let (free, total) = self.process.cuda.info().map_err(text)?;
                Ok(format!("info {free} {total}"))
            }
            "drop" => self.drop_all().map(|()| String::from("dropped")).map_err(text),
            "hangup" => Ok(format!("hung {}", odd::hang_up())),
            "look" => Ok(format!("looked {}", u8::from(odd::look()))),
            "fork" => Ok(format!("forked {}", odd::fork())),
            _ => Err(format!("{order}: unknown order")),
        }
    }
}

fn number(words: &[String], at: usize) -> Result<u64, String> {
    let word = words.get(at).ok_or("usage: churn SEED THREADS UNIT MOST [KINDS]")?;
    word.parse().map_err(|_| format!("{word}: no number"))
}

/// Kinds of memory by their numbers, a digit each.
fn kinds(digits: &str) -> Result<Vec<u64>, String> {
    let kind = |digit: char| digit.to_digit(10).map(u64::from);
    let known = |kind: &u64| *kind < item::FAMILIES;
    let kinds = digits.chars().map(|digit| kind(digit).filter(known));
    let kinds: Option<Vec<u64>> = kinds.collect();
    let kinds = kinds.filter(|kinds| !kinds.is_empty());
    kinds.ok_or_else(|| format!("{digits}: kinds are digits below {}", item::FAMILIES))
}

fn run() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = [0; 4];
    for (at, place) in numbers.iter_mut().enumerate() {
        *place = number(&words, at)?;
    }
    let all = || (0..item::FAMILIES).collect();
    let kinds = words.get(4).map_or_else(|| Ok(all()), |digits| kinds(digits))?;
    let started = Program::start(numbers, kinds);
    let mut program = started.map_err(|error| error.to_string())?;
    let mut out = std::io::stdout();
    let mut say = |line: &str| writeln!(out, "{line}").and_then(|()| out.flush());
    say("ready").map_err(|error| error.to_string())?;
    for order in std::io::stdin().lock().lines() {
        let order = order.map_err(|error| error.to_string())?;
        let answer = program.answer(&order)?;
        say(&answer).map_err(|error| error.to_string())?;
    }
    // Destroys the context, so that a voluntary exit is orderly.
    program.process.cuda.leave(program.process.context).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    gpuslice_apps::status("churn", run())
}
