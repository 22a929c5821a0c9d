//! `gpuslice top` in a real terminal, and without one.

use super::gpuslice;
use crate::harness::node::Node;
use crate::harness::{PATIENCE, eventually, within};
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::{Signal, kill};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The modes in which a terminal reads lines, shows what is typed, and knows Ctrl-C.
const COOKED: libc::tcflag_t = libc::ICANON | libc::ECHO | libc::ISIG;

/// A program in a terminal of its own.
struct Screen {
    child: Child,
    keys: File,
    /// All bytes: a character may come in two parts.
    written: Arc<Mutex<Vec<u8>>>,
    /// Reads what is written, until no program has the terminal any more.
    reader: Option<JoinHandle<()>>,
}

impl Screen {
    fn start(mut command: Command, (width, height): (u16, u16)) -> Screen {
        let (ours, theirs) = terminal(width, height);
        let copy = || Stdio::from(theirs.try_clone().expect("a copy"));
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let terminal = theirs.as_raw_fd();
        let own = move || {
            // SAFETY: system calls alone; the terminal is open until the program starts.
            unsafe {
                libc::setsid();
                libc::ioctl(terminal, libc::TIOCSCTTY, 0);
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(own) };
        let child = command.spawn().expect("it starts");
        let keys = File::from(ours);
        let mut from = keys.try_clone().expect("a copy");
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let all = written.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut buffer) {
                all.lock().expect("no panic").extend_from_slice(&buffer[..len]);
            }
        });
        Screen { child, keys, written, reader: Some(reader) }
    }

    /// All that was written so far.
    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("no panic")).into_owned()
    }

    /// All that was written, once the program has ended well.
    fn whole(mut self) -> String {
        let ended = self.child.wait().expect("ours");
        self.reader.take().expect("not taken").join().expect("no panic");
        let shown = self.shown();
        assert!(ended.success(), "{ended:?}: {shown}");
        shown
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Those of the modes [`COOKED`] that the terminal has.
    fn line_modes(&self) -> libc::tcflag_t {
        // SAFETY: a termios of zeros is valid, and has room for the terminal's.
        let modes = unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.keys.as_raw_fd(), &mut modes), 0, "a terminal");
            modes
        };
        modes.c_lflag & COOKED
    }

    /// Waits for a text among all that was written, escape sequences included.
    fn shows(&self, text: &str) {
        eventually(text, || self.shown().contains(text));
    }

    /// Waits for a text on the screen: a program writes only the cells that change.
    fn reads(&self, text: &str) {
        eventually(text, || grid(&self.shown()).contains(text));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the screen: {:?}", self.shown());
        }
    }
}

/// Both ends of a terminal of this size. Programs that other tests start do not inherit them.
fn terminal(width: u16, height: u16) -> (OwnedFd, OwnedFd) {
    let size = libc::winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: plain numbers, and a size that lives.
    let (ours, theirs) = unsafe {
        let ours = libc::posix_openpt(flags);
        assert!(ours >= 0 && libc::unlockpt(ours) == 0, "a terminal");
        (ours, libc::ioctl(ours, libc::TIOCGPTPEER, flags))
    };
    assert!(theirs >= 0, "a terminal's other end");
    // SAFETY: both were just opened, and are owned here alone; the size lives.
    unsafe {
        assert_eq!(libc::ioctl(ours, libc::TIOCSWINSZ, &raw const size), 0, "a size");
        (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
    }
}

/// The cells of the screen, a line for each row. The sequences that place the cursor are followed, others are skipped.
fn grid(written: &str) -> String {
    let mut cells = vec![vec![' '; 80]; 24];
    let (mut row, mut column) = (0, 0);
    let mut all = written.chars();
    while let Some(c) = all.next() {
        if c != '\x1b' {
            if let Some(cell) = cells.get_mut(row).and_then(|line| line.get_mut(column)) {
                *cell = c;
            }
            column += 1;
            continue;
        }
        let mut sequence = String::new();
        while !sequence.ends_with(|c: char| c.is_ascii_alphabetic()) {
            let Some(next) = all.next() else { break };
            sequence.push(next);
        }
        let place = sequence.strip_prefix('[').and_then(|it| it.strip_suffix('H'));
        if let Some((to_row, to_column)) = place.and_then(|it| it.split_once(';')) {
            let number = |text: &str| text.parse::<usize>().unwrap_or(1).saturating_sub(1);
            (row, column) = (number(to_row), number(to_column));
        }
    }
    cells.into_iter().map(|line| line.into_iter().chain(['\n']).collect::<String>()).collect()
}

fn top(node: &Node, words: &[&str]) -> Command {
    let mut command = gpuslice();
    command.arg("top").args(words).arg("--runtime-dir").arg(node.runtime_dir());
    command
}

#[test]
fn a_terminal_shows_slices_and_changes_them() {
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    let mut command = top(&node, &["--every", "0.1"]);
    command.env("TERM", "xterm-256color").env("NO_COLOR", "1");
    let mut screen = Screen::start(command, (80, 24));
    screen.shows("\x1b[?1049h"); // another screen, so that the shell's stays
    screen.reads("web");
    screen.reads("no process");
    screen.reads("q quit");
    screen.press("w7\r");
    screen.reads("are you sure?");
    screen.press("y");
    screen.reads("weight: 1 -> 7");
    // what is malformed is said without a question, and nothing is changed
    screen.press("w0\r");
    screen.reads("invalid value");
    screen.press("\x7f\rq"); // an empty value ends the prompt
    eventually("the end", || screen.child.try_wait().expect("ours").is_some());
    assert!(screen.child.wait().expect("ours").success());
    screen.shows("\x1b[?1049l");
    assert_eq!(screen.line_modes(), COOKED);
    let shown = screen.shown();
    assert!(!shown.contains("\x1b[31m") && !shown.contains("\x1b[38;5;"), "colours: {shown:?}");
    assert_eq!(super::slice_named(&super::ps(&node), "web").expect("a slice")["weight"], 7);
}

/// The detail names the slice's processes; the test itself is one.
#[test]
fn a_slice_in_full_has_its_processes() {
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    node.must_admit("zero", Bytes(GIB));
    let process = node.tenant("web");
    process.attach(Bytes(0));
    let mut command = top(&node, &["--every", "0.1"]);
    command.env("TERM", "xterm-256color");
    let mut screen = Screen::start(command, (80, 24));
    screen.reads("no process");
    screen.press("\r");
    let own = std::process::id();
    let name = std::fs::read_to_string(format!("/proc/{own}/comm")).expect("our name");
    screen.reads(&format!("  {own} {}: 0B held", name.trim()));
    drop(process);
    screen.reads("processes 0");
    // the slice ends while it is shown, and the next one is shown
    node.dismiss("web");
    screen.reads("zero (zero) on gpu 0");
    assert!(screen.child.try_wait().expect("ours").is_none());
}

/// A signal ends the program, and the terminal echoes again, has its cursor and the shell's page.
#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut command = top(&node, &["--every", "3600"]);
        command.env("TERM", "xterm-256color");
        let mut screen = Screen::start(command, (80, 24));
        screen.reads("q quit");
        assert_eq!(screen.line_modes(), 0, "{signal}: a screen reads keys");
        kill(super::misuse::pid(&screen.child), signal).expect("it lives");
        let ended = screen.child.wait().expect("ours");
        assert_eq!(ended.signal(), Some(signal as i32), "{signal}: {ended:?}");
        assert_eq!(screen.line_modes(), COOKED, "{signal}");
        screen.shows("\x1b[?1049l");
        screen.shows("\x1b[?25h");
    }
}

/// Sentences break between words on a terminal, and go on below their beginning; a command stays one line.
#[test]
fn lines_fit_into_a_narrow_terminal() {
    let node = Node::start();
    node.must_admit("a-name-of-thirty-two-characters-", Bytes(GIB));
    let mut suspend = gpuslice();
    suspend.args(["suspend", "a-name", "--runtime-dir"]).arg(node.runtime_dir());
    assert!(suspend.status().expect("it starts").success());
    for words in [
        &["explain"][..],
        &["explain", "a-name"],
        &["explain", "a-name", "--since-start"],
        &["gpus"],
        &["ps"],
        &["ps", "-o", "wide"],
        &["ps", "-o", "NAME,CONTAINER,UUID,WHY"],
        &["plot"],
        &["events"],
    ] {
        let mut command = gpuslice();
        command.args(words).arg("--runtime-dir").arg(node.runtime_dir());
        let shown = Screen::start(command, (80, 24)).whole();
        let table = ["gpus", "ps"].contains(&words[0]);
        let word = if table { "simulated (kind)" } else { "a-name-of" };
        assert!(shown.contains(word), "{words:?}: {shown}");
        // a command to copy stays one line, however long the path in it is
        let mut lines = shown.split("\r\n").filter(|line| !line.trim_start().starts_with("try:"));
        let long = lines.find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{words:?}: {shown}");
    }
}

/// The demo's table and its verdict have room: the columns that it is about stay, and no word is cut.
#[test]
fn the_demo_fits_into_eighty_columns() {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = gpuslice();
    command.args(["demo", "--sim", "--runtime", "none", "--seconds", "4"]);
    command.env("TMPDIR", place.path()).env("TERM", "xterm-256color");
    let mut screen = Screen::start(command, (80, 24));
    // Its own start alone may take 30 s.
    within(PATIENCE * 3 / 2, "the end", || screen.child.try_wait().expect("ours").is_some());
    screen.shows("verdict: ");
    let shown = screen.shown();
    let plain = shown.replace("\x1b[J", "");
    let lines: Vec<&str> = plain
        .split("\r\n")
        .map(|line| match line.strip_prefix("\x1b[") {
            Some(up) => up.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('A'),
            None => line,
        })
        .collect();
    let long = lines.iter().find(|line| line.chars().count() > 80);
    assert_eq!(long, None, "{shown:?}");
    let head = lines.iter().find(|line| line.starts_with("NAME ")).expect("a table");
    assert!(["DUE", "GOT", "WAIT"].iter().all(|column| head.contains(column)), "{head}");
    assert!(plain.contains("(no room for UNTRACKED, CAP-BY, "), "{plain}");
}

#[test]
fn without_a_screen_there_are_rows() {
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    let output = top(&node, &["--every", "0.1", "--count", "2"]).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.matches("NAME ").count(), 2, "{text}");
    assert!(!text.contains('\x1b') && text.contains("\nweb "), "{text}");
    let none = top(&node, &["--count", "0"]).output().expect("it starts");
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    // a terminal that cannot move its cursor; and a pipe whose reader leaves
    let mut dumb = top(&node, &["--every", "0.1"]);
    dumb.env("TERM", "dumb");
    let mut screen = Screen::start(dumb, (80, 24));
    screen.shows("no process");
    screen.press("\x03");
    eventually("the end", || screen.child.try_wait().expect("ours").is_some());
    assert!(!screen.shown().contains('\x1b'));
    // Its input is a terminal, and its output is not.
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" top --every 0.1 --count 2 --runtime-dir \"$1\" | cat"]);
    shell.arg(env!("CARGO_BIN_EXE_gpuslice")).arg(node.runtime_dir()).env("TERM", "xterm-256color");
    let shown = Screen::start(shell, (80, 24)).whole();
    assert!(!shown.contains('\x1b') && shown.matches("NAME ").count() == 2, "{shown:?}");
    let mut piped = top(&node, &["--every", "0.1"]);
    let mut child = piped.stdout(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("ours").success());
}
