//! Other processes of this program: one for each case, and more for cases about several.
//!
//! A case starts a helper in a *role*: the helper does its part, prints a word, and waits until the
//! case closes its standard input. So no case depends on a sleep.

use crate::words::{Gpu, Outcome, Stop, fail, note, noted, skip};
use crate::{array, exact, ipc, lookup, pool_limits, processes, sparse, vmm, vmm_share};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// First argument of a process that runs a case.
pub const CASE: &str = "--case";
/// First argument of a helper.
pub const ROLE: &str = "--role";
/// No case takes so long where anything works.
pub const LONGEST: Duration = Duration::from_secs(120);

/// Names the file in which cases note the free memory at their beginning.
pub const USUAL: &str = "CONFORMANCE_USUAL";

/// That file, of this run.
fn usual() -> PathBuf {
    std::env::temp_dir().join(format!("conformance-{}", std::process::id()))
}

/// The run is over: its file goes.
pub fn forget() {
    let _ = std::fs::remove_file(usual());
}

/// How a case's process ended.
pub enum Ended {
    /// With what [`crate::words::noted`] says.
    Pass(String),
    Skip(String),
    Fail(String),
}

fn myself() -> Command {
    let path = std::env::current_exe().unwrap_or_else(|_| "conformance".into());
    let mut command = Command::new(path);
    command.stdout(Stdio::piped());
    command
}

/// Runs a case in a process of its own, which may take so long.
pub fn run(name: &str, longest: Duration) -> Ended {
    let mut child = myself();
    child.args([CASE, name]).stdin(Stdio::null());
    let child = child.env(USUAL, usual()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(why) => return Ended::Fail(format!("its process does not start: {why}")),
    };
    let Some(mut from) = child.stdout.take() else {
        return Ended::Fail("its process says nothing".into());
    };
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = from.read_to_string(&mut text);
        text
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < longest => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Ended::Fail(format!("it does not end within {longest:?}"));
            }
        }
    };
    let text = reader.join().unwrap_or_default();
    let last = text.lines().last().unwrap_or_default();
    match last.split_once(' ').unwrap_or((last, "")) {
        _ if !status.success() => Ended::Fail(format!("its process ended with {status}: {last}")),
        ("pass", answers) => Ended::Pass(answers.to_owned()),
        ("skip", why) => Ended::Skip(why.to_owned()),
        (_, why) => Ended::Fail(why.to_owned()),
    }
}

/// A helper; killed when dropped.
pub struct Helper {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts a helper in a role.
    pub fn start(role: &str, arguments: &[&str]) -> Outcome<Helper> {
        let mut command = myself();
        command.arg(ROLE).arg(role).args(arguments).stdin(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|why| Stop::Fail(format!("{role} does not start: {why}")))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        match from {
            Some(from) => Ok(Helper { child, to, from: BufReader::new(from) }),
            None => fail("a helper without an output"),
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its next line.
    pub fn hears(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(count) if count > 0 => {
                let line = line.trim_end();
                match line.strip_prefix("skip ") {
                    Some(why) => skip(why),
                    None => Ok(line.to_owned()),
                }
            }
            _ => fail("a helper ended without a word"),
        }
    }

    /// It says this word next.
    pub fn says(&mut self, word: &str) -> Outcome {
        match self.hears()? {
            heard if heard == word => Ok(()),
            heard => fail(format_args!("a helper said {heard:?} instead of {word:?}")),
        }
    }

    /// Tells it something.
    pub fn tell(&mut self, word: &str) -> Outcome {
        let sent = self.to.as_mut().map(|to| writeln!(to, "{word}").and_then(|()| to.flush()));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => fail("a helper does not listen"),
        }
    }

    /// Lets it end, and waits until it has ended well.
    pub fn end(mut self) -> Outcome {
        drop(self.to.take());
        let mut rest = String::new();
        let _ = self.from.read_to_string(&mut rest);
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            other => fail(format_args!("a helper ended with {other:?}: {rest}")),
        }
    }

    /// Waits until it has ended well, or with SIGSEGV.
    fn end_or_crash(mut self) -> Outcome {
        drop(self.to.take());
        let mut text = String::new();
        let _ = self.from.read_to_string(&mut text);
        let status = self.child.wait().or_else(fail)?;
        if status.success() || status.signal() == Some(libc::SIGSEGV) {
            note(format!("({status} {})", text.trim_end()));
            return Ok(());
        }
        match text.trim_end().strip_prefix("skip ") {
            Some(why) => skip(why),
            None => fail(format_args!("a helper ended with {status}: {text}")),
        }
    }

    /// Kills it and waits until it is gone.
    pub fn kill(mut self) -> Outcome {
        let _ = self.child.kill();
        self.child.wait().map(drop).or_else(fail)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A helper makes an invalid call and expects a refusal. A card's driver does not check some handles and pointers, so
/// that its process ends with SIGSEGV. Either is right; afterwards this device's memory is as before.
pub fn refused_or_crashes(gpu: Gpu, role: &str) -> Outcome {
    Helper::start(role, &[])?.end_or_crash()?;
    gpu.back_after_others()
}

/// Says a word to the case.
pub fn say(word: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).or_else(fail)
}

/// What the case says next; nothing when it has closed the line.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap_or(0);
    (read > 0).then(|| line.trim_end().to_owned())
}

/// What a helper does with its arguments.
type Role = fn(&[String]) -> Outcome;

const ROLES: [(&str, Role); 19] = [
    ("hold", processes::hold),
    ("fill", processes::fill),
    ("grow", processes::grow),
    ("idle", processes::idle),
    ("look", processes::look),
    ("exact", exact::exact),
    ("nvml", exact::nvml_only),
    ("open", ipc::open),
    ("share", ipc::share),
    ("import", vmm_share::import),
    ("import-pool", pool_limits::import),
    ("release-foreign", vmm::foreign_released),
    ("map-released", vmm::released_mapped),
    ("destroy-array-twice", array::destroyed_twice),
    ("destroy-level", array::level_destroyed),
    ("map-bad-handle", sparse::bad_handle_mapped),
    ("map-ended-array", sparse::ended_array_mapped),
    ("null-name", lookup::null_name_asked),
    ("null-out", lookup::null_out_asked),
];

/// Runs a role in this process.
pub fn role(words: &[String]) -> ExitCode {
    let name = words.first().map_or("", String::as_str);
    let Some((_, role)) = ROLES.iter().find(|(one, _)| *one == name) else {
        eprintln!("conformance: no role {name}");
        return ExitCode::from(2);
    };
    match role(&words[1..]) {
        Ok(()) => {
            let _ = say(&noted());
            ExitCode::SUCCESS
        }
        Err(why) => {
            let word = match why {
                Stop::Skip(why) => format!("skip {why}"),
                Stop::Fail(why) => format!("failed: {why}"),
            };
            let _ = say(&word);
            ExitCode::FAILURE
        }
    }
}

/// Lets helpers have this descriptor, under the same number.
pub fn inherit(fd: i32) {
    // SAFETY: changes a flag of a descriptor that the caller holds.
    unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
}
