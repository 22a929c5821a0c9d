//! P6: another process's work, through a duplicate of its open file; and its end while it is stopped.

use crate::Options;
use crate::control::{self, StopMethod, Way};
use crate::own;
use crate::page::{Meter, Page};
use crate::row::{Row, us_since};
use crate::watch::{Job, PATIENCE, moves, stop_one, stopped_after};
use crate::worker::{Names, Worker};
use gpuslice_host::{control_node, process};
use gpuslice_sim_device::Machine;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Lines, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The methods tried on another process's work: the daemon's is the last.
const METHODS: [(StopMethod, &str); 2] = [
    (StopMethod::GroupNow, "group off the run list, preempted"),
    (StopMethod::Disable, "channels disabled"),
];

/// The child: prints its names, sends its file, then obeys each line of standard input.
pub fn child(options: &Options) -> Result<bool, String> {
    let text = |why: &dyn std::fmt::Display| why.to_string();
    let page = Page::inherited(options.page_fd).map_err(|why| text(&why))?;
    let mut worker = Worker::new(options, page).map_err(|why| text(&why))?;
    let (Some(group), Some(names)) = (worker.group(), worker.names()) else {
        return Err("no channel group was seen".into());
    };
    control::remember(group, &names);
    let iov = [IoSlice::new(b"file")];
    let files = [group.fd];
    let rights = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(options.socket_fd, &iov, &rights, MsgFlags::empty(), None)
        .map_err(|why| text(&why))?;
    let channels: Vec<String> = names.channels.iter().map(u32::to_string).collect();
    let Names { client, group: named, subdevice, .. } = names;
    let list = channels.join(" ");
    println!("names {} {client} {named} {subdevice} {list}", group.fd);
    let way = Way::Own(group);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (what, ms) = line.split_once(' ').unwrap_or((&line, "0"));
        let length = Duration::from_millis(ms.parse().unwrap_or(0));
        match what {
            "launch" => Job::launch(&mut worker, length)?,
            "settle" => {
                let (ended, right) = Job::settle(&mut worker, length)?;
                println!("settled {ended} {right}");
            }
            "disable" => println!("disabled {}", StopMethod::Disable.stop(&way, &names).status),
            // Nothing is resumed first: the driver must cope with disabled channels.
            "leave" => std::process::exit(0),
            other => return Err(format!("cannot {other}")),
        }
    }
    Ok(true)
}

/// The parent's view of the child.
struct Other {
    child: Child,
    ask: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    number: RawFd,
    names: Names,
    sent: OwnedFd,
    meter: Meter,
}

impl Other {
    fn start(options: &Options) -> Result<Other, String> {
        let text = |why: &dyn std::fmt::Display| why.to_string();
        let page = Arc::new(Page::new().map_err(|why| text(&why))?);
        let (kind, family) = (SockType::Stream, AddressFamily::Unix);
        let (here, there) =
            socketpair(family, kind, None, SockFlag::empty()).map_err(|why| text(&why))?;
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["held", "--page-fd", &page.number().to_string()])
            .args(["--socket-fd", &there.as_raw_fd().to_string()])
            .args(["--rounds-per-us", &options.rounds_per_us.to_string()])
            .args(options.sim.then_some("--sim"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|why| text(&why))?;
        drop(there);
        let (ask, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.ok_or("no output of the child")?).lines();
        let meter = match options.sim {
            true => Meter::Account(Machine::observe().map_err(|why| text(&why))?, child.id()),
            false => Meter::Told(page),
        };
        let sent = received(&here)?;
        let mut other =
            Other { child, ask, answers, number: 0, names: Names::default(), sent, meter };
        let line = other.word("names ")?;
        let words: Vec<u32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [number, client, group, subdevice, channels @ ..] = &words[..] else {
            return Err(format!("the child said {line:?}"));
        };
        other.number = *number as RawFd;
        other.names = Names {
            client: *client,
            group: *group,
            subdevice: *subdevice,
            channels: channels.to_vec(),
        };
        Ok(other)
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let ask = self.ask.as_mut().ok_or("the child was ended")?;
        writeln!(ask, "{line}").map_err(|why| why.to_string())
    }

    fn word(&mut self, begins: &str) -> Result<String, String> {
        let line = self.answers.next().and_then(Result::ok).unwrap_or_default();
        let rest = line.strip_prefix(begins).map(str::to_owned);
        rest.ok_or_else(|| format!("the child said {line:?} where {begins:?} was due"))
    }

    /// Microseconds until the child is gone. After `PATIENCE` it is killed; after twice that the result is `None`.
    fn gone(&mut self) -> Option<f64> {
        let start = Instant::now();
        while start.elapsed() < 2 * PATIENCE {
            if let Ok(Some(_)) = self.child.try_wait() {
                return Some(us_since(start));
            }
            if start.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        None
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Without effect on a child that has ended; one that the driver keeps alive is not waited for.
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}

fn received(here: &OwnedFd) -> Result<OwnedFd, String> {
    let mut bytes = [0u8; 8];
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(RawFd);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(here.as_raw_fd(), &mut iov, Some(&mut space), flags)
        .map_err(|why| why.to_string())?;
    for part in message.cmsgs().map_err(|why| why.to_string())? {
        if let ControlMessageOwned::ScmRights(files) = part
            && let Some(fd) = files.first()
        {
            // SAFETY: fresh from the kernel, not owned elsewhere.
            return Ok(unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    Err("the child sent no file: it ended, or saw no channel group".into())
}

impl Job for Other {
    fn launch(&mut self, length: Duration) -> Result<(), String> {
        self.tell(&format!("launch {}", length.as_millis()))
    }

    fn settle(&mut self, within: Duration) -> Result<(bool, bool), String> {
        self.tell(&format!("settle {}", within.as_millis()))?;
        let word = self.word("settled ")?;
        Ok((word.starts_with("true"), word == "true true"))
    }

    fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

fn machine(options: &Options) -> Result<Option<&'static Machine>, String> {
    let machine = options.sim.then(Machine::observe).transpose();
    machine.map_err(|why| why.to_string())
}

/// The methods on another process's work, by both ways to its file. Not asked are the controls for root alone, and
/// channels that are named through a file not of their process: on an H200 one of these ended in Xid 109, a context
/// that the GPU could not take off.
pub fn second(options: &Options) -> Result<bool, String> {
    let (options, seen) = &own::calibrated(options)?;
    if !seen {
        return own::unseen("second", options);
    }
    let mut other = Other::start(options)?;
    let names = other.names.clone();
    let sent = other.sent.try_clone().map_err(|why| why.to_string())?;
    let mut ways = vec![("sent", Way::Other(sent, machine(options)?))];
    let pidfd = process::pidfd_open(other.child.id()).map_err(io::Error::from);
    let taken = pidfd.and_then(|it| process::duplicate(it.as_fd(), other.number as u32));
    let its = taken.as_ref().is_ok_and(|file| control_node::is_control_node(file).unwrap_or(false));
    Row::of("second")
        .plain("root", nix::unistd::geteuid().is_root())
        .word("pidfd_getfd", &taken.as_ref().map_or_else(|why| why.to_string(), |_| "ok".into()))
        .plain("the_control_node", its)
        .say();
    if let Ok(file) = taken {
        ways.push(("taken", Way::Other(file, machine(options)?)));
    }
    let mut right = true;
    for (how, way) in &ways {
        let probe = format!("second, file {how}");
        for method in METHODS {
            right &= stop_one(&probe, method, (way, &names), &mut other, options.length)?;
        }
    }
    other.ask = None;
    other.gone();
    Ok(right)
}

/// P5's last question: a process that ends while its channels are disabled, in the middle of a kernel.
pub fn teardown(options: &Options) -> Result<bool, String> {
    let (options, seen) = &own::calibrated(options)?;
    if !seen {
        return own::unseen("teardown", options);
    }
    let mut other = Other::start(options)?;
    other.launch(options.length)?;
    let meter = other.meter();
    let begun = moves(&meter, Duration::from_secs(5)).is_some();
    let start = Instant::now();
    other.tell("disable")?;
    let status = other.word("disabled ")?;
    let stopped_us = stopped_after(&meter, start);
    other.tell("leave")?;
    let gone_us = other.gone();
    Row::of("teardown")
        .plain("begun", begun)
        .word("stop", &status)
        .us("stopped_us", stopped_us)
        .us("gone_us", gone_us)
        .say();
    drop(other);
    // The driver must still serve the next process.
    Ok(own::begins(options)? && gone_us.is_some())
}
