//! `gpuslice metrics`: its text as Prometheus' own tool judges it, and its service before good clients and bad ones.

mod alerts;

use crate::harness::cli::gpuslice;
use crate::harness::node::Node;
use crate::harness::process::KillOnDrop;
use crate::harness::wire::Connection;
use crate::harness::{PATIENCE, copy_program, is_root, skip};
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::{Signal, kill};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A scrape as a program without wishes makes it.
const GOOD: &str = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

#[test]
fn metrics_are_printed_and_judged() {
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    let output = gpuslice(&node, &["metrics"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("gpuslice_up 1\n"), "{text}");
    let mut caps = text
        .lines()
        .filter(|it| it.starts_with("gpuslice_slice_memory_cap_bytes{gpu=\"0\",UUID=\"GPU-"));
    let cap = caps.next().expect("a cap");
    assert!(cap.contains(",slice=\"web\",") && cap.ends_with(" 1073741824"), "{cap}");
    let judge = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut judge) = judge else {
        return skip("promtool check metrics", "no promtool in PATH");
    };
    let mut to = judge.stdin.take().expect("piped");
    to.write_all(text.as_bytes()).expect("it reads");
    drop(to);
    let said = judge.wait_with_output().expect("it ends");
    // A name of dcgm-exporter's, and no other complaint.
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let known = "gpuslice_gpu_info label names should be written in 'snake_case' not 'camelCase'";
    assert_eq!(said.lines().collect::<Vec<_>>(), [known; 2], "one of each GPU");
}

/// A server on a port of its own choice.
pub struct Exporter(#[expect(dead_code)] KillOnDrop, pub String);

impl Exporter {
    pub fn start(node: &Node) -> Exporter {
        let gpuslice = Path::new(env!("CARGO_BIN_EXE_gpuslice"));
        Exporter::spawn(Exporter::command(gpuslice, node))
    }

    fn command(gpuslice: &Path, node: &Node) -> Command {
        let mut command = Command::new(gpuslice);
        command.args(["metrics", "--listen", "127.0.0.1:0", "--runtime-dir"]);
        command.arg(node.runtime_dir()).stderr(Stdio::piped());
        command
    }

    fn spawn(mut command: Command) -> Exporter {
        let mut child = command.spawn().expect("gpuslice starts");
        let mut said = std::io::BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).expect("its address");
        let address = line.split("http://").nth(1).expect("an address");
        let address = address.split('/').next().expect("an address").to_owned();
        Exporter(KillOnDrop(child), address)
    }

    pub fn ask(&self, request: &str) -> String {
        let mut client = TcpStream::connect(&self.1).expect("it listens");
        client.set_read_timeout(Some(PATIENCE)).expect("a limit");
        client.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        // One that is cut off while it still talks sees a reset.
        let _ = client.read_to_string(&mut answer);
        answer
    }
}

#[test]
fn metrics_are_served_to_good_clients_and_bad() {
    let mut node = Node::start();
    let exporter = Exporter::start(&node);
    let silent = Connection::connect(&node.runtime_dir().join("admin.sock")).expect("a socket");
    let answer = exporter.ask(GOOD);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\ngpuslice_up 1\n"),
        "{answer}"
    );
    assert!(exporter.ask("GET / HTTP/1.1\r\n\r\n").contains("404"));
    assert!(exporter.ask("DELETE /metrics HTTP/1.1\r\n\r\n").contains("405"));
    assert_eq!(exporter.ask(&"x".repeat(100_000)), "", "too long");
    // Half a question, and then nothing: the others are served afterwards.
    let mut half = TcpStream::connect(&exporter.1).expect("it listens");
    half.write_all(b"GET /met").expect("it reads");
    assert!(exporter.ask(GOOD).contains("gpuslice_up 1"));
    drop((half, silent));
    node.end_daemon(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(1_100)); // a list may be a second old
    assert!(exporter.ask(GOOD).contains("gpuslice_up 0"));
}

/// Twice as many silent clients as the server serves at a time: a scrape is answered before they are given up, which
/// the newest of them, still connected, shows.
#[test]
fn metrics_are_not_delayed_by_silent_clients() {
    let node = Node::start();
    let exporter = Exporter::start(&node);
    let connect = |_| TcpStream::connect(&exporter.1).expect("it listens");
    let is_open = |mut client: &TcpStream| {
        client.set_nonblocking(true).expect("a socket");
        let read = client.read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let is_served_before = || {
        let since = Instant::now();
        let silent: Vec<TcpStream> = (0..64).map(connect).collect();
        assert!(exporter.ask(GOOD).contains("gpuslice_up 1"));
        assert!(!is_open(&silent[0]), "the oldest has given way");
        let (is_open, took) = (is_open(&silent[63]), since.elapsed());
        // They are given up after 2 s, which a busy machine may need for all of this.
        assert!(is_open || took >= Duration::from_millis(1_800), "the scrape waited: {took:?}");
        is_open
    };
    assert!((0..5).any(|_| is_served_before()), "this test is never in time");
}

/// Twenty idle connections, a daemon that has stopped, and ten scrapes at once: each is answered within the time of
/// one, by the same answer.
#[test]
fn scrapes_of_a_daemon_that_hangs_are_answered_together() {
    let node = Node::start();
    let exporter = Exporter::start(&node);
    let idle = (0..20).map(|_| TcpStream::connect(&exporter.1).expect("it listens"));
    let idle: Vec<TcpStream> = idle.collect();
    kill(node.pid(), Signal::SIGSTOP).expect("stopped");
    let scrape = |number: usize| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let ask = |_| scope.spawn(|| exporter.ask(GOOD));
            for scrape in (0..number).map(ask).collect::<Vec<_>>() {
                assert!(scrape.join().expect("a scrape").contains("\ngpuslice_up 0\n"));
            }
        });
        start.elapsed()
    };
    let one = scrape(1);
    std::thread::sleep(Duration::from_millis(1_100)); // an answer is used again for a second
    let ten = scrape(10);
    // One waits for the daemon for 4 s; one after the other would take ten times as long. One that is a second late
    // waits for an answer of its own.
    assert!(ten < 5 * one, "{one:?} for one, {ten:?} for ten");
    kill(node.pid(), Signal::SIGCONT).expect("continued");
    drop(idle);
    crate::harness::eventually("the daemon is seen again", || {
        exporter.ask(GOOD).contains("gpuslice_up 1")
    });
}

/// The daemon's uptime in seconds, when it made the answer.
fn uptime_of(text: &str) -> f64 {
    let mut lines = text.lines();
    let uptime = lines.find_map(|it| it.strip_prefix("gpuslice_daemon_uptime_seconds "));
    uptime.expect("an uptime").parse().expect("a number")
}

/// Scrapes within a second share one answer of the daemon. The answers' own times show it, however slow the machine is:
/// the service counts the second from an answer's arrival, so two that differ were made at least that far apart.
#[test]
fn scrapes_within_a_second_share_one_answer() {
    let node = Node::start();
    let exporter = Exporter::start(&node);
    let mut made = Vec::<f64>::new();
    crate::harness::eventually("a third answer", || {
        let uptime = uptime_of(&exporter.ask(GOOD));
        if made.last() != Some(&uptime) {
            made.push(uptime);
        }
        made.len() == 3
    });
    assert!(made.windows(2).all(|two| two[1] - two[0] >= 1.0), "{made:?}");
}

/// A user that may not ask is told so, by the program and by its service; no series says that the daemon is away.
#[test]
fn without_rights_a_daemon_is_not_away() {
    if !is_root() {
        return skip("metrics without rights", "needs root, to be another user");
    }
    let node = Node::start();
    // The programs are root's; a copy that every user can run.
    let public = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let copy = public.path().join("gpuslice");
    copy_program(Path::new(env!("CARGO_BIN_EXE_gpuslice")), &copy);
    for path in [public.path(), node.root(), node.runtime_dir()] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a mode");
    }
    let mut once = Command::new(&copy);
    once.arg("metrics").arg("--runtime-dir").arg(node.runtime_dir()).uid(65534).gid(65534);
    let output = once.output().expect("gpuslice starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("permission denied"), "{output:?}");
    assert_eq!(output.stdout, b"", "an error and no metric");
    let mut exporter = Exporter::command(&copy, &node);
    exporter.uid(65534).gid(65534);
    let exporter = Exporter::spawn(exporter);
    let answer = exporter.ask(GOOD);
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("permission denied"),
        "{answer}"
    );
    assert!(!answer.contains("gpuslice_up"), "{answer}");
}

/// Prometheus asks for OpenMetrics, and its own tool understands both formats.
#[test]
fn scrapers_get_the_format_that_they_accept() {
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    let exporter = Exporter::start(&node);
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let (mut open, mut plain) = (String::new(), String::new());
    // Within a second, so that both are of one answer of the daemon's.
    crate::harness::eventually("both formats of one answer", || {
        open = exporter.ask(&format!("GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n"));
        plain = exporter.ask(GOOD);
        uptime_of(&open) == uptime_of(&plain)
    });
    assert!(
        open.contains("\r\nContent-Type: application/openmetrics-text;")
            && open.ends_with("\n# EOF\n"),
        "{open}"
    );
    assert!(
        open.contains("\n# TYPE gpuslice_gpu info\n")
            && open.contains("\n# TYPE gpuslice_gpu_busy_seconds counter\n")
    );
    assert!(plain.contains("\r\nContent-Type: text/plain; version=0.0.4;"), "{plain}");
    assert!(
        plain.contains("\n# TYPE gpuslice_gpu_busy_seconds_total counter\n")
            && !plain.contains("# EOF")
    );
    let series = |text: &str| text.lines().filter(|it| it.starts_with("gpuslice_")).count();
    assert_eq!(series(&open), series(&plain));
}
