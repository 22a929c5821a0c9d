//! `gpuslice web`: the node in a browser, to be read only: GPUs, slices, the last minutes, events, explanations.
//!
//! Three static files are in the program; the page's script reads a stream of server-sent events. One thread asks the
//! daemon once a second while a page is open. Each client has a thread, which waits a bounded time for it; their
//! number is bounded.

mod feed;
mod http;
mod pace;

use crate::clients::{Clients, WhenFull, lock};
use crate::elsewhere;
use crate::out;
use anyhow::{Context, Result, bail};
use feed::Feed;
use http::{Asked, HEAD_BYTES_MAX, Page, Rules, Status};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time limit for a client's request, and for each part of an answer.
const CLIENT_WITHIN: Duration = Duration::from_secs(5);
/// Interval between two questions to the daemon.
const EVERY: Duration = Duration::from_secs(1);
/// Clients at a time.
const CLIENTS_MAX: usize = 48;
/// Clients that may have a stream of figures at a time.
const STREAMS_MAX: usize = 16;
/// Bytes of the token, and of the name of the pages' directory.
const TOKEN_BYTES: usize = 16;

const INDEX: &str = include_str!("index.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("app.js");

/// Options of `gpuslice web`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9878")]
    listen: SocketAddr,
    /// Serve other machines too: an address that is not of this machine alone
    #[arg(long)]
    remote: bool,
    /// A further name under which browsers know this server, with a port if it is another one; repeat it for several
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Serve without the token, to every client that reaches the address
    #[arg(long)]
    no_token: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const HELP: &str = "\
The view can only be read. Every user of this machine can reach a local address, so the address that is printed ends in
a token, which the browser keeps as a cookie. There is no encryption: from another machine, use ssh -L 9878:127.0.0.1:9878.";

/// What all threads share.
struct Server {
    rules: Rules,
    clients: Clients,
    feed: Mutex<Feed>,
    /// The number of the last news, and the news.
    news: Mutex<(u64, Arc<str>)>,
    is_new: Condvar,
}

/// Runs `gpuslice web`.
///
/// # Errors
/// No daemon answers; the address is not of this machine alone, or not available.
pub fn main(options: &Options) -> Result<ExitCode> {
    if let Some(name) = options.host.iter().find(|name| http::stands_for_all(name)) {
        bail!(
            "--host {name}: no browser calls a server so; to be reached from other machines, give --listen {name}:{} --remote",
            options.listen.port()
        );
    }
    if !options.listen.ip().is_loopback() && !options.remote {
        bail!(
            "{} is reached from other machines; listen at 127.0.0.1, or give --remote if that is meant",
            options.listen.ip()
        );
    }
    // A page without figures would not say why. A daemon that restarts later is asked again.
    elsewhere::connect(options.runtime_dir.as_deref())?;
    let listener = TcpListener::bind(options.listen)
        .with_context(|| format!("{}; give another address with --listen", options.listen))?;
    let at = listener.local_addr()?;
    let secret = if options.no_token { None } else { Some([random()?, random()?]) };
    let query = secret.as_ref().map_or(String::new(), |[token, _]| format!("?token={token}"));
    let server = Server {
        rules: Rules::new(at, &options.host, secret),
        clients: Clients::new(CLIENTS_MAX, WhenFull::TurnAway),
        feed: Mutex::new(Feed::new(options.runtime_dir.clone())),
        news: Mutex::new((0, Arc::from(""))),
        is_new: Condvar::new(),
    };
    for ip in places(at.ip()) {
        out::line(&format!("http://{}:{}/{query}", http::literal(ip), at.port()))?;
    }
    std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(|| server.follow());
        loop {
            // The client has closed the connection already, or no descriptor is free.
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let Ok(entered) = server.clients.enter(&client) else { continue };
            let Some(number) = entered else {
                let _gone_already = turn_away(client);
                continue;
            };
            let serves = move || {
                let _closed_or_late = server.serve(client, number);
                server.clients.leave(number);
            };
            // Without memory for a thread the client is turned away.
            if std::thread::Builder::new().spawn_scoped(scope, serves).is_err() {
                server.clients.leave(number);
            }
        }
    })
}

/// The addresses at which browsers reach a server: its own, or those of all interfaces, this machine's own last. What
/// stands for all of them is no address for a browser of another machine.
fn places(ip: IpAddr) -> Vec<IpAddr> {
    if !ip.is_unspecified() {
        return vec![ip];
    }
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let of = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        // An address of one link needs the interface's name in the URL, which browsers refuse.
        let v6 = address.as_sockaddr_in6().map(|it| it.ip());
        v4.or(v6.filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::V6))
    };
    let all = interfaces.filter_map(|interface| of(interface.address?));
    let mut all: Vec<IpAddr> = all.filter(|it| ip.is_ipv6() || it.is_ipv4()).collect();
    all.sort_by_key(|ip| (ip.is_loopback(), *ip));
    all.dedup();
    if all.is_empty() { vec![ip] } else { all }
}

/// Random bytes in hexadecimal digits.
fn random() -> Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut source = std::fs::File::open("/dev/urandom").context("/dev/urandom")?;
    source.read_exact(&mut bytes).context("/dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Answers without waiting for the request.
fn turn_away(mut client: TcpStream) -> io::Result<()> {
    client.set_write_timeout(Some(Duration::from_millis(10)))?;
    client.write_all(http::refusal(&http::BUSY).as_bytes())
}

impl Server {
    /// Asks the daemon once a second while there are clients.
    fn follow(&self) {
        loop {
            std::thread::sleep(EVERY);
            let has_clients = self.clients.count() > 0;
            let news = {
                let mut feed = lock(&self.feed);
                feed.tick(has_clients);
                if !has_clients {
                    continue;
                }
                feed.news().to_string()
            };
            let mut last = lock(&self.news);
            *last = (last.0 + 1, Arc::from(news));
            self.is_new.notify_all();
        }
    }

    fn serve(&self, mut client: TcpStream, number: u64) -> io::Result<()> {
        client.set_write_timeout(Some(CLIENT_WITHIN))?;
        let asked = match self.read(&mut client)? {
            Ok(asked) => asked,
            Err(refused) => return client.write_all(http::refusal(&refused).as_bytes()),
        };
        self.clients.asked(number);
        let answer = |kind: &str, body: &str| http::answer("200 OK", kind, body);
        let answer = match asked {
            Asked::Enter => {
                let (cookie, to) = (self.rules.cookie(), &self.rules.directory);
                let more =
                    format!("Set-Cookie: {cookie}\r\nLocation: {to}\r\nContent-Length: 0\r\n");
                http::head("303 See Other", "text/plain", &more)
            }
            Asked::Page(Page::Index) => answer("text/html; charset=utf-8", INDEX),
            Asked::Page(Page::Style) => answer("text/css; charset=utf-8", STYLE),
            Asked::Page(Page::Script) => answer("text/javascript; charset=utf-8", SCRIPT),
            Asked::Page(Page::Figures) => answer("application/json", &self.whole()),
            Asked::Page(Page::Stream) if self.clients.streams(number, STREAMS_MAX) => {
                return self.stream(client);
            }
            Asked::Page(Page::Stream) => http::no_stream(),
        };
        client.write_all(answer.as_bytes())
    }

    /// Reads a request's head within the time limit.
    fn read(&self, client: &mut TcpStream) -> io::Result<Result<Asked, Status>> {
        let until = Instant::now() + CLIENT_WITHIN;
        let local = client.local_addr()?.ip();
        let mut head = Vec::new();
        let mut part = [0; 1024];
        loop {
            match self.rules.judge(&head[..head.len().min(HEAD_BYTES_MAX)], local) {
                Ok(Some(asked)) => return Ok(Ok(asked)),
                Ok(None) => {}
                Err(refused) => return Ok(Err(refused)),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            client.set_read_timeout(Some(left))?;
            match client.read(&mut part)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => head.extend_from_slice(&part[..read]),
            }
        }
    }

    /// Everything, brought up to now.
    fn whole(&self) -> String {
        let mut feed = lock(&self.feed);
        feed.want();
        feed.whole().to_string()
    }

    /// Sends everything, then what is new, until the client is gone. A client that was too slow for some news gets
    /// everything again.
    fn stream(&self, mut client: TcpStream) -> io::Result<()> {
        client.write_all(http::head("200 OK", "text/event-stream", "").as_bytes())?;
        let mut seen = lock(&self.news).0;
        let mut send = |data: &str| client.write_all(format!("data: {data}\n\n").as_bytes());
        send(&self.whole())?;
        loop {
            let (number, news) = {
                let last = lock(&self.news);
                let waited =
                    self.is_new.wait_timeout_while(last, 10 * EVERY, |last| last.0 == seen);
                waited.unwrap_or_else(PoisonError::into_inner).0.clone()
            };
            match number - seen {
                0 => send("null")?,
                1 => send(&news)?,
                _ => send(&self.whole())?,
            }
            seen = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_clients_are_given_up_after_5_s() {
        assert_eq!(CLIENT_WITHIN, Duration::from_secs(5));
    }

    /// Without a daemon it ends with the reason, as other commands do; it does not print an address.
    #[test]
    fn without_a_daemon_it_is_refused() {
        let (send, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let options = Options {
                listen: SocketAddr::from(([127, 0, 0, 1], 0)),
                remote: false,
                host: Vec::new(),
                no_token: false,
                runtime_dir: Some(PathBuf::from("/nonexistent")),
            };
            send.send(main(&options).map_err(|why| format!("{why:#}")))
        });
        let done = ended.recv_timeout(Duration::from_secs(10)).expect("it ends");
        assert!(done.is_err_and(|why| why.contains("no daemon answers at /nonexistent")));
    }

    /// The script takes texts of tenants as texts: no call of it parses HTML or code.
    #[test]
    fn the_page_has_no_place_for_markup_of_tenants() {
        for word in
            ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("]
        {
            assert!(!SCRIPT.contains(word), "{word}");
        }
        for word in ["<script>", "style=", "onclick", "onload", "http://", "https://"] {
            assert!(!INDEX.contains(word), "{word}: the policy of the answers forbids it");
        }
    }
}
