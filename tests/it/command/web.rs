//! `gpuslice web`: which requests it answers, how many, and the page in a real browser.

use super::schemas::assert_fits;
use super::{gpuslice, ps, slice_named, tenant_of};
use crate::harness::browser::{Browser, chromium};
use crate::harness::node::Node;
use crate::harness::process::KillOnDrop;
use crate::harness::{eventually, skip};
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, GIB};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A server of a node's view.
struct Server {
    _child: KillOnDrop,
    /// Host and port.
    host: String,
    token: String,
    /// Of the pages, between slashes.
    directory: String,
}

impl Server {
    fn start(node: &Node, words: &[&str]) -> Server {
        let mut command = gpuslice();
        command.args(["web", "--listen", "127.0.0.1:0"]).args(words);
        command.arg("--runtime-dir").arg(node.runtime_dir());
        Server::of(command)
    }

    /// The server of a node whose runtime directory is at its usual place, so that the commands in the documents'
    /// picture need no option. Needs root.
    fn at_its_place(node: &Node) -> Server {
        let script = "mkdir -p /run/gpuslice && mount --bind \"$0\" /run/gpuslice && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
        command.arg(node.runtime_dir()).arg(env!("CARGO_BIN_EXE_gpuslice"));
        command.args(["web", "--listen", "127.0.0.1:0"]);
        Server::of(command)
    }

    fn of(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let out = child.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("http://").expect("an address").to_owned();
        let (host, token) = address.split_once('/').expect("a path");
        let token = token.strip_prefix("?token=").unwrap_or_default().to_owned();
        let (_child, host) = (KillOnDrop(child), host.to_owned());
        let mut server = Server { _child, host, token, directory: "/".to_owned() };
        if !server.token.is_empty() {
            let enter = server.enter();
            let to = enter.lines().find_map(|line| line.strip_prefix("Location: "));
            server.directory = to.expect("a redirection").to_owned();
        }
        server
    }

    /// The answer to the address that was printed.
    fn enter(&self) -> String {
        let host = format!("Host: {}", self.host);
        self.ask(&format!("GET /?token={} HTTP/1.1", self.token), &[&host])
    }

    /// The first line of a request for a page.
    fn line(&self, page: &str) -> String {
        format!("GET {}{page} HTTP/1.1", self.directory)
    }

    fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(&self.host).expect("it listens");
        connection.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        connection
    }

    /// The whole answer to a request with these header lines.
    fn ask(&self, line: &str, headers: &[&str]) -> String {
        let mut connection = self.connect();
        let head: String = headers.iter().map(|it| format!("{it}\r\n")).collect();
        let _refused_early = connection.write_all(format!("{line}\r\n{head}\r\n").as_bytes());
        let mut answer = Vec::new();
        let _reset = connection.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn port(&self) -> &str {
        self.host.rsplit(':').next().expect("a port")
    }

    fn cookie(&self) -> String {
        format!("Cookie: gpuslice-{}={}", self.port(), self.token)
    }

    /// A page, as a browser that has the token asks for it.
    fn get(&self, page: &str) -> String {
        let host = format!("Host: {}", self.host);
        self.ask(&self.line(page), &[&host, &self.cookie()])
    }

    /// A request for the stream.
    fn stream_request(&self) -> String {
        let head = [self.line("stream"), format!("Host: {}", self.host), self.cookie()];
        format!("{}\r\n\r\n", head.join("\r\n"))
    }

    /// The news of a stream.
    fn stream(&self) -> impl FnMut() -> Value + use<> {
        let mut stream = self.connect();
        stream.write_all(self.stream_request().as_bytes()).expect("sent");
        let mut lines = BufReader::new(stream).lines();
        move || loop {
            let line = lines.next().expect("a line").expect("text");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str::<Value>(data).expect("JSON");
            }
        }
    }

    fn figures(&self) -> Value {
        let answer = self.get("figures.json");
        let (_, body) =
            answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no body: {answer}"));
        serde_json::from_str(body).expect("JSON")
    }
}

/// A slice's name: markup, except in the picture for the documents.
fn name() -> &'static str {
    if pictured() { "notebook" } else { "<img src=x onerror=alert(1)>" }
}

/// A node with a slice whose name is markup.
fn node() -> Node {
    let node = Node::start();
    let name = Name::new(name()).expect("a name");
    node.must_admit_with("c0ffee0123456789", "1", Bytes(GIB), |asked| asked.name = name);
    node
}

#[test]
fn only_its_own_page_reads_the_figures() {
    let node = node();
    let server = Server::start(&node, &[]);
    let host = format!("Host: {}", server.host);
    let port = server.port();
    assert_eq!(server.token.len(), 32);
    for (line, headers, status) in [
        ("GET / HTTP/1.1", vec![host.clone()], "401"),
        (
            server.line("figures.json").as_str(),
            vec![host.clone(), format!("Cookie: gpuslice-{port}=0")],
            "401",
        ),
        ("GET / HTTP/1.1", vec![format!("Host: evil.example:{port}"), server.cookie()], "421"),
        ("GET / HTTP/1.1", vec![server.cookie()], "421"),
        ("POST / HTTP/1.1", vec![host.clone(), server.cookie()], "405"),
        ("GET /etc/passwd HTTP/1.1", vec![host.clone(), server.cookie()], "404"),
        (
            server.line("stream").as_str(),
            vec![host.clone(), server.cookie(), "Sec-Fetch-Site: cross-site".to_owned()],
            "403",
        ),
        ("nonsense", vec![], "400"),
    ] {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let answer = server.ask(line, &headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line} {headers:?}: {answer}");
        assert!(!answer.contains("c0ffee"), "{answer}");
    }
    let (enter, directory) = (server.enter(), &server.directory);
    assert!(enter.starts_with("HTTP/1.1 303 "), "{enter}");
    // A browser sends a cookie to all ports of its host: to those who know the directory's name.
    assert_eq!(directory.len(), 34, "{enter}");
    assert!(enter.contains(&format!(
        "Set-Cookie: {}; Path={directory}; HttpOnly",
        server.cookie().trim_start_matches("Cookie: ")
    )));
    let page = server.get("");
    assert!(
        page.contains("Content-Security-Policy: default-src 'none'")
            && page.contains("<!doctype html>")
    );
    let figures = server.figures();
    assert_fits("web", &figures);
    assert_eq!(figures["slices"][0]["name"], "<img src=x onerror=alert(1)>");
    assert_eq!((&figures["error"], &figures["whole"]), (&Value::Null, &true.into()));
    let open = Server::start(&node, &["--no-token"]);
    assert!(open.token.is_empty() && open.get("figures.json").starts_with("HTTP/1.1 200"));
}

#[test]
fn an_address_of_other_machines_is_refused_unless_asked_for() {
    let node = Node::start();
    let mut command = gpuslice();
    command.args(["web", "--listen", "0.0.0.0:0", "--runtime-dir"]).arg(node.runtime_dir());
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("--remote"), "{said}");
    let mut remote = gpuslice();
    remote.args(["web", "--listen", "0.0.0.0:0", "--remote", "--runtime-dir"]);
    let mut child =
        remote.arg(node.runtime_dir()).stdout(Stdio::piped()).spawn().expect("it starts");
    let out = child.stdout.take().expect("a pipe");
    let lines = BufReader::new(out).lines().map(|line| line.expect("text"));
    // an address for each interface, the machine's own last
    let mut places = Vec::new();
    for line in lines {
        let address = line.strip_prefix("http://").and_then(|it| it.split_once("/?token="));
        let (host, token) = address.expect("an address");
        places.push((host.to_owned(), token.to_owned()));
        if host.starts_with("127.") || host.starts_with("0.") {
            break;
        }
    }
    let answers: Vec<[String; 3]> = places
        .iter()
        .map(|(at, token)| {
            let (_, port) = at.rsplit_once(':').expect("a port");
            let ask = |host: &str| {
                let mut connection = TcpStream::connect(at).expect("it listens");
                let line = format!("GET /?token={token} HTTP/1.1\r\nHost: {host}\r\n\r\n");
                connection.write_all(line.as_bytes()).expect("sent");
                let mut answer = String::new();
                connection.read_to_string(&mut answer).expect("an answer");
                answer[..12].to_owned()
            };
            [at.clone(), format!("0.0.0.0:{port}"), format!("203.0.113.5:{port}")]
                .map(|it| ask(&it))
        })
        .collect();
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    assert!(
        !answers.is_empty() && places.iter().all(|(at, _)| !at.starts_with("0.")),
        "{places:?}"
    );
    for answer in answers {
        assert_eq!(answer, ["HTTP/1.1 303", "HTTP/1.1 421", "HTTP/1.1 421"], "{places:?}");
    }
}

#[test]
fn a_name_that_stands_for_all_addresses_is_refused() {
    let node = Node::start();
    for name in ["0.0.0.0", "[::]:9878"] {
        let mut command = gpuslice();
        command.args(["web", "--listen", "127.0.0.1:0", "--host", name, "--runtime-dir"]);
        let output = command.arg(node.runtime_dir()).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("--listen") && said.contains(name),
            "{said}"
        );
    }
}

#[test]
fn slow_and_many_clients_keep_no_other_waiting() {
    let node = node();
    let server = Server::start(&node, &[]);
    // more silent connections than there are places, half of them with a part of a request
    let mut silent: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    for connection in silent.iter_mut().step_by(2) {
        let _turned_away = connection.write_all(b"GET / HT");
    }
    assert!(server.get("").starts_with("HTTP/1.1 200"), "a page beside 200 silent clients");
    let is_open = |mut client: &TcpStream| {
        client.set_nonblocking(true).expect("a socket");
        client.read(&mut [0]).is_err_and(|why| why.kind() == ErrorKind::WouldBlock)
    };
    assert!(!is_open(&silent[0]), "the oldest has given way");
    assert!(is_open(&silent[199]), "the page waited until the silent ones were given up");
    // streams take places for longer; their number is bounded
    let mut streams = Vec::new();
    let mut refused = 0;
    for _ in 0..24 {
        let mut stream = server.connect();
        stream.write_all(server.stream_request().as_bytes()).expect("sent");
        let mut lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
        let told = lines
            .find_map(|line| line.expect("an answer").strip_prefix("data: ").map(str::to_owned));
        let told: Value = serde_json::from_str(&told.expect("an event")).expect("JSON");
        refused += u32::from(told["refused"] == "too many pages are open; close one of them");
        streams.push(stream);
    }
    assert_eq!(refused, 8);
    assert!(server.get("app.js").starts_with("HTTP/1.1 200"), "a page beside all streams");
    drop((silent, streams));
    eventually("places are free again", || {
        let answer = server.ask("GET /stream HTTP/1.0", &[&format!("Host: {}", server.host)]);
        answer.starts_with("HTTP/1.1 401")
    });
    // a head without an end is ended
    let long = server.ask(&format!("GET /{} HTTP/1.1", "x".repeat(20_000)), &[]);
    assert!(long.is_empty() || long.starts_with("HTTP/1.1 431"), "{long}");
}

#[test]
fn a_stream_has_news_each_second_and_outlives_a_daemon() {
    let mut node = node();
    let server = Server::start(&node, &[]);
    let mut next = server.stream();
    let first = next();
    assert_eq!(
        (&first["whole"], first["slices"].as_array().map(Vec::len)),
        (&true.into(), Some(1))
    );
    // Where the server is a second late, all figures come once more.
    assert!((0..5).any(|_| next()["whole"] == false), "it tells what is new alone");
    let in_first = |news: &Value| news["events"].as_array().expect("a list").clone();
    assert!(in_first(&first).iter().any(|it| it["event"] == "slice-began"), "{first}");
    node.end_daemon(nix::sys::signal::Signal::SIGKILL);
    let mut gone = next();
    while gone["error"].is_null() {
        gone = next();
    }
    assert!(gone["error"].as_str().is_some_and(|why| why.contains("daemon")), "{gone}");
    node.start_daemon(&[]);
    let mut back = next();
    while !back["error"].is_null() {
        back = next();
    }
    assert_eq!(back["slices"].as_array().map(Vec::len), Some(1), "{back}");
    // the page forgets the numbers of the daemon before, of events and of series
    assert_eq!(back["whole"], true, "{back}");
    let events = in_first(&back);
    assert!(events.iter().any(|it| it["event"] == "daemon-started"), "{back}");
    assert!(events.iter().all(|it| it["event"] != "slice-began"), "of this daemon alone: {back}");
    let figures = server.figures();
    assert_eq!(figures["events"], back["events"], "one that opens now sees the same");
}

/// A client that asks without a pause gets the figures that streams have, and causes no others.
#[test]
fn a_client_that_loops_changes_no_figures() {
    let node = node();
    let server = Server::start(&node, &[]);
    let mut next = server.stream();
    let at = |value: &Value| value["figures_ns"].as_u64().expect("a time");
    let is_over = AtomicBool::new(false);
    let (told, seen) = std::thread::scope(|scope| {
        let (server, is_over) = (&server, &is_over);
        let loops = scope.spawn(move || {
            let mut seen = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                seen.insert(at(&server.figures()));
            }
            seen
        });
        let news = (0..=12).map(|_| next());
        let told: Vec<(u64, bool)> = news.map(|it| (at(&it), it["whole"] == true)).collect();
        is_over.store(true, Ordering::Relaxed);
        (told, loops.join().expect("it ends"))
    });
    // A stream that is behind, on a busy machine, misses figures, or has the last ones again as a whole.
    let in_order = told.is_sorted_by(|one, other| one.0 < other.0 || other.1 && one.0 == other.0);
    let same = told.windows(2).filter(|two| two[0].0 == two[1].0).count();
    assert!(in_order && same <= 1, "{told:?}");
    let missed = told.windows(2).filter(|two| two[1].0 - two[0].0 >= 1_500_000_000).count();
    let (last, _) = told.last().expect("some");
    let is_told = |it: &u64| told.iter().any(|(at, _)| at == it);
    let others: Vec<&u64> = seen.iter().filter(|it| *it <= last && !is_told(it)).collect();
    assert!(others.len() <= missed && seen.len() > 6, "{others:?} of {seen:?} beside {told:?}");
}

/// The page of a busy node in a real browser: its figures are there, a name that is markup is a text, a click explains
/// a slice, and a picture of it is the one of the documents.
#[test]
fn a_browser_shows_the_node() {
    let Some(program) = chromium() else {
        return skip("a_browser_shows_the_node", "chromium is not installed");
    };
    let node = node();
    let mut children: Vec<Child> =
        ["train", "embed"].map(|name| tenant_of(&node, name, "400")).into();
    if pictured() {
        std::thread::sleep(Duration::from_secs(240));
    }
    let both = |view: Value| ["train", "embed"].iter().all(|it| slice_named(&view, it).is_some());
    eventually("both have slices", || both(ps(&node)));
    let server = if pictured() { Server::at_its_place(&node) } else { Server::start(&node, &[]) };
    let url = format!("http://{}/?token={}", server.host, server.token);
    let files = node.root().join("browser");
    let mut browser = Browser::open(&program, &files, (1320, 860), &url);
    browser.await_true("document.body != null && document.body.dataset.ready == 'yes'");
    let shows = |browser: &mut Browser, part: &str| {
        browser.await_true(&format!("document.body.innerText.includes({})", Value::from(part)));
    };
    for part in ["train", "embed", "GPU 0", "(simulated, kind)", "slice-began", "live, "] {
        shows(&mut browser, part);
    }
    shows(&mut browser, name()); // a text
    assert_eq!(browser.value("document.images.length"), 0, "a name is no markup");
    assert_eq!(browser.value("location.search"), "", "the token is not in the address any more");
    browser.value("[...document.querySelectorAll('tr.slice')].find(it => it.innerText.includes('embed')).click()");
    browser.await_true("document.querySelector('tr.detail') != null");
    shows(&mut browser, "rules");
    // the next second leaves it open
    let first = browser.value("document.getElementById('state').textContent");
    browser.await_true(&format!("document.getElementById('state').textContent != {first}"));
    browser.await_true("document.querySelector('tr.detail') != null");
    let picture = browser.picture();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000, "{} bytes", picture.len());
    // a narrow page loses columns, and the reason stays in sight
    for width in [960, 800, 600, 400] {
        browser.resize((width, 860));
        let beyond = browser
            .value("(it => it.scrollWidth - it.clientWidth)(document.querySelector('.scroll'))");
        assert_eq!(beyond, 0, "the table is wider than a page of {width} pixels");
        let reasons = "[...document.querySelectorAll('tr.slice td:last-child')]";
        let is_seen = "it => (at => at.width > 0 && at.left >= 0 && at.right <= innerWidth)(it.getBoundingClientRect())";
        let told = format!(
            "{reasons}.every(it => it.className && it.innerText.trim() && ({is_seen})(it))"
        );
        assert_eq!(browser.value(&format!("!!({told})")), true, "reasons at {width} pixels");
        assert_eq!(browser.value(&format!("{reasons}.length > 1")), true);
    }
    for child in &mut children {
        super::interrupt(child);
        child.wait().expect("it ends");
    }
    if pictured() {
        let to = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/web.png");
        std::fs::write(to, picture).expect("a picture is written");
    }
}

/// Whether the pictures of the documents are to be made anew.
fn pictured() -> bool {
    std::env::var_os("GPUSLICE_PICTURES").is_some()
}
