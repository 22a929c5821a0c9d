//! The attackers of [`hostile`](crate::hostile): programs that run until they are ended, each in its own slice.
//!
//! `gpuslice-bench-time attack NAME [WORD]` is one of them. Those of many processes start themselves again. As in a
//! container, all of them together have the processor time of one control group.

use crate::Error;
use crate::client::Client;
use crate::fuse::Unanswering;
use crate::liar::claims_work;
use crate::node::end_with_this;
use gpuslice_host::seqpacket;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::CHANNELS_PER_GROUP_MAX;
use gpuslice_wire::tenant::{ObjectName, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A user without slices.
const NOBODY: u32 = 65534;
/// Connections that an attacker keeps open, more than a container may have.
const CONNECTIONS: usize = 300;
/// Lingering connections that it keeps, each with megabytes in the kernel.
const LINGERING: usize = 32;

/// Runs one for ever.
///
/// # Errors
/// It cannot attack.
pub fn run(name: &str, word: &str) -> Result<(), Error> {
    // The bench may have a real-time priority, which no container has.
    let normal = libc::sched_param { sched_priority: 0 };
    // SAFETY: `normal` is ours; 0 is this process.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &normal) };
    match name {
        "compute" => many(16, "one-computes", word),
        "one-computes" => loop {
            std::hint::spin_loop();
        },
        "descriptors" => descriptors(),
        "strangers" => many(4, "one-stranger", word),
        "one-stranger" => stranger(Path::new(word)),
        "connections" => connections(),
        "bells" => many(16, "one-bell", word),
        "all-bells" => many(254, "one-bell", word),
        "one-bell" => bell(),
        "fuse" => unanswering(),
        "attach-and-close" => many(4, "one-attaches", word),
        "one-attaches" => attach_and_close(),
        "scrapers" => scrapers(word),
        "closefrom" => closefrom(Path::new(word)),
        "requests" => many(4, "one-requests", word),
        "one-requests" => requests(),
        "waiters" => waiters(),
        _ => Err(format!("{name}: unknown attack").into()),
    }
}

/// So many processes of another attack, which end with this one.
fn many(count: usize, name: &str, word: &str) -> Result<(), Error> {
    let start = |_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["attack", name, word]).stdin(Stdio::null());
        end_with_this(&mut command);
        command.spawn()
    };
    let all: Vec<_> = (0..count).map(start).collect::<Result<_, _>>()?;
    for mut child in all {
        child.wait()?;
    }
    Err(format!("{name}: all have ended").into())
}

/// Sends TCP connections whose close waits for a peer that does not read.
fn descriptors() -> Result<(), Error> {
    let mut unread = VecDeque::new();
    loop {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut stream = TcpStream::connect(listener.local_addr()?)?;
        let (peer, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        while stream.write(&[0; 1 << 16]).is_ok() {}
        let linger = |l_onoff| libc::linger { l_onoff, l_linger: 600 };
        setsockopt(&stream, sockopt::Linger, &linger(1))?;
        let sent = Client::of_this_slice()
            .is_ok_and(|to| seqpacket::send(&to.0, b"x", &[stream.as_raw_fd()]).is_ok());
        if !sent {
            // It is still this process's to close.
            setsockopt(&stream, sockopt::Linger, &linger(0))?;
        }
        unread.push_back(peer);
        if unread.len() > LINGERING {
            unread.pop_front();
        }
    }
}

/// Another user's process, which has a way to the socket of a container.
fn stranger(socket: &Path) -> Result<(), Error> {
    let dir = File::open(socket.parent().ok_or("no directory")?)?;
    let name = socket.file_name().and_then(|name| name.to_str()).ok_or("no name")?;
    // A process that changed its user cannot use its own /proc/self/fd, and outlives its parent, until it says so.
    // SAFETY: plain numbers.
    let done = unsafe {
        libc::setgid(NOBODY)
            | libc::setuid(NOBODY)
            | libc::prctl(libc::PR_SET_DUMPABLE, 1)
            | libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)
    };
    if done != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    loop {
        // It is refused, and the connection ends.
        if let Ok(client) = seqpacket::connect(&dir, name).map(Client)
            && client.ask_to_attach().is_ok()
        {
            let _ = client.hear();
        }
    }
}

/// Connects again and again, says nothing, and keeps as many connections as it can.
fn connections() -> Result<(), Error> {
    let mut open = VecDeque::new();
    loop {
        open.extend(Client::of_this_slice().ok());
        if open.len() > CONNECTIONS {
            open.pop_front();
        }
    }
}

/// Wants all GPUs and does not, and says both, without a pause.
fn bell() -> Result<(), Error> {
    let client = Client::of_this_slice()?;
    let mut attached = client.attach()?;
    for round in 0_u32.. {
        for lane in &attached.client.lane {
            lane.runnable.store(round & 1, SeqCst);
        }
        attached.bell.write_all(&1_u64.to_ne_bytes())?;
    }
    Ok(())
}

/// Names a file whose server does not answer as the driver's, and is late with its work.
fn unanswering() -> Result<(), Error> {
    let server = Unanswering::mount()?;
    let client = Client::of_this_slice()?;
    let mut attached = client.attach()?;
    client.send(&Request::Group {
        lane: Lane(0),
        fd: server.file().as_raw_fd().cast_unsigned(),
        client: ObjectName(1),
        group: ObjectName(2),
        subdevice: ObjectName(2),
    })?;
    let channels = [ObjectName(3); CHANNELS_PER_GROUP_MAX];
    client.send(&Request::Channels { client: ObjectName(1), group: ObjectName(2), channels })?;
    loop {
        claims_work(&mut attached)?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn attach_and_close() -> Result<(), Error> {
    loop {
        // The daemon may have ended it meanwhile.
        let _ = Client::of_this_slice()?.ask_to_attach();
    }
}

/// Idle connections to the port of the metrics, more than it serves at a time.
fn scrapers(address: &str) -> Result<(), Error> {
    let mut open = VecDeque::new();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => open.push_back(stream),
            Err(why) if why.kind() == ErrorKind::ConnectionRefused => return Err(why.into()),
            Err(_) => {}
        }
        if open.len() > CONNECTIONS {
            open.pop_front();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A program that closes descriptors which the shim has open, allocates, and so has it attach again.
fn closefrom(churn: &Path) -> Result<(), Error> {
    let mut command = Command::new(churn);
    command.args(["1", "1", "2097152", "1", "0"]).stdin(Stdio::piped()).stdout(Stdio::null());
    loop {
        let mut child = command.spawn()?;
        let mut orders = child.stdin.take().ok_or("no pipe")?;
        while orders.write_all(b"hangup\ntake 2097152\ndrop\n").is_ok() {}
        // Rust's own check of descriptors, in a debug build, ends it.
        child.wait()?;
    }
}

/// Asks for memory and gives it back, without a pause.
fn requests() -> Result<(), Error> {
    let client = Client::of_this_slice()?;
    let _attached = client.attach()?;
    let (lane, bytes) = (Lane(0), Bytes(MIB));
    loop {
        client.send(&Request::Reserve { lane, need: bytes, wish: bytes })?;
        client.hear()?;
        client.send(&Request::Release { lane, bytes })?;
    }
}

/// Many requests for memory that one process has and is asked to return, which it does not.
fn waiters() -> Result<(), Error> {
    let client = Client::of_this_slice()?;
    let _attached = client.attach()?;
    let (lane, all) = (Lane(0), Bytes(GIB));
    client.send(&Request::Reserve { lane, need: all, wish: all })?;
    client.hear()?;
    let waits = || -> Result<(), Error> {
        let client = Client::of_this_slice()?;
        let _attached = client.attach()?;
        loop {
            client.send(&Request::Reserve { lane, need: Bytes(MIB), wish: Bytes(MIB) })?;
            client.hear()?;
        }
    };
    std::thread::scope(|scope| {
        let waits = || waits().err().map(|why| why.to_string());
        let all: Vec<_> = (0..128).map(|_| scope.spawn(waits)).collect();
        let ended = all.into_iter().find_map(|thread| thread.join().ok().flatten());
        Err(ended.unwrap_or_default().into())
    })
}
