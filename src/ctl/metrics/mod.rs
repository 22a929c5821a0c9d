//! `gpuslice metrics`: Prometheus metrics of the slices, printed once or served over HTTP.
//!
//! It lists the slices at a scrape; scrapes within [`FRESH`] share one list. As a service it runs as a user of its
//! own that may use the observers' socket, which answers lists only; root uses the administrators' socket. It
//! supports the HTTP that scrapers use: one `GET`, one response, connection closed. Each client has a thread, with
//! limits on time and request size. There are at most [`CLIENTS_MAX`]; a new client takes the place of the one that
//! has been silent for longest, so silent clients delay no scrape.

mod text;
mod wall_time;

use crate::admin::{Admin, Forbidden};
use crate::out;
use anyhow::{Context, Result};
use gpuslice_host::layout::{ADMIN_SOCKET, OBSERVE_SOCKET};
use gpuslice_wire::snapshot::Snapshot;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest request head, bytes; the rest is not read.
const REQUEST_BYTES_MAX: usize = 8192;
/// Time limit for a client's request, and for reading the response.
const CLIENT_WITHIN: Duration = Duration::from_secs(2);
/// Clients at a time.
const CLIENTS_MAX: usize = 32;
/// Age up to which a list answers another scrape.
const FRESH: Duration = Duration::from_millis(100);
/// The end of a request's head.
const END: &[u8] = b"\r\n\r\n";

/// Options of `gpuslice metrics`.
#[derive(clap::Args)]
pub struct Options {
    /// Serve the metrics at http://ADDRESS/metrics, e.g. 127.0.0.1:9877, instead of printing them
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Runtime directory of the daemon [default: /run/gpuslice]
    #[arg(long, value_name = "DIR", default_value = "/run/gpuslice", hide_default_value = true)]
    runtime_dir: PathBuf,
}

/// Runs `gpuslice metrics`.
///
/// # Errors
/// The address is not available, standard output cannot be written, or this user may not ask the daemon. An absent
/// daemon is a metric.
pub fn main(options: &Options) -> Result<ExitCode> {
    let Some(address) = options.listen else {
        out::line(metrics(&options.runtime_dir)?.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    let listener = TcpListener::bind(address)
        .with_context(|| format!("{address}; give another address with --listen"))?;
    let address = listener.local_addr()?;
    out::note(&format!("metrics at http://{address}/metrics"));
    // Without a service manager this does nothing.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    let service = Service { runtime_dir: options.runtime_dir.clone(), ..Service::default() };
    std::thread::scope(|scope| {
        loop {
            // The client has closed the connection already, or no descriptor is free.
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let Ok(mine) = service.enter(&client) else { continue };
            let service = &service;
            let serves = move || {
                let _closed_or_late = service.serve(client, mine);
                service.leave(mine);
            };
            // Without memory for a thread the client is turned away.
            if std::thread::Builder::new().spawn_scoped(scope, serves).is_err() {
                service.leave(mine);
            }
        }
    })
}

/// Lists through the observers' socket if this user may use it, else the administrators'.
fn rows(runtime_dir: &Path) -> Result<Vec<Snapshot>> {
    let admin = Admin::connect_to(runtime_dir, OBSERVE_SOCKET)
        .or_else(|_| Admin::connect_to(runtime_dir, ADMIN_SOCKET))?;
    Ok(admin.list()?.1)
}

/// The metrics. A daemon that this user may not ask is not counted as absent.
///
/// # Errors
/// [`Forbidden`].
fn metrics(runtime_dir: &Path) -> Result<String> {
    match rows(runtime_dir) {
        Err(why) if why.is::<Forbidden>() => Err(why),
        rows => Ok(text::render(rows.as_deref().ok())),
    }
}

/// What the threads of the clients share.
#[derive(Default)]
struct Service {
    runtime_dir: PathBuf,
    clients: Mutex<Clients>,
    /// The last answer, and from when it is.
    last: Mutex<Option<(Instant, String)>>,
}

/// The clients that are served, the oldest first.
#[derive(Default)]
struct Clients {
    numbers: u64,
    served: VecDeque<Client>,
}

struct Client {
    number: u64,
    stream: TcpStream,
    /// Its request has arrived.
    asked: bool,
}

/// A lock whose holder panicked: what it protects is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Counts a client. If there are too many, it ends the oldest one whose request has not arrived, else the oldest.
    fn enter(&self, client: &TcpStream) -> io::Result<u64> {
        let copy = client.try_clone()?;
        let mut clients = lock(&self.clients);
        if clients.served.len() >= CLIENTS_MAX {
            let silent = clients.served.iter().position(|client| !client.asked);
            if let Some(oldest) = clients.served.remove(silent.unwrap_or(0)) {
                let _closed_already = oldest.stream.shutdown(Shutdown::Both);
            }
        }
        clients.numbers += 1;
        let number = clients.numbers;
        clients.served.push_back(Client { number, stream: copy, asked: false });
        Ok(number)
    }

    fn asked(&self, mine: u64) {
        let mut clients = lock(&self.clients);
        let client = clients.served.iter_mut().find(|client| client.number == mine);
        client.into_iter().for_each(|client| client.asked = true);
    }

    fn leave(&self, mine: u64) {
        lock(&self.clients).served.retain(|client| client.number != mine);
    }

    /// The metrics, of a list that is at most [`FRESH`] old.
    fn metrics(&self) -> Result<String> {
        let mut last = lock(&self.last);
        if let Some((since, text)) = &*last
            && since.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let text = metrics(&self.runtime_dir)?;
        *last = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    fn serve(&self, mut client: TcpStream, mine: u64) -> io::Result<()> {
        client.set_write_timeout(Some(CLIENT_WITHIN))?;
        let head = head(&mut client)?;
        self.asked(mine);
        let (status, body) = answer(&head, || self.metrics());
        respond(client, status, &body)
    }
}

fn respond(mut client: TcpStream, status: &str, body: &str) -> io::Result<()> {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close"
    );
    client.write_all(head.as_bytes())?;
    client.write_all(END)?;
    client.write_all(body.as_bytes())
}

/// Reads a request's head within the time limit.
fn head(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + CLIENT_WITHIN;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(END.len()).any(|bytes| bytes == END) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > REQUEST_BYTES_MAX {
            return Err(ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => head.extend_from_slice(&part[..read]),
        }
    }
    Ok(head)
}

fn answer(head: &[u8], metrics: impl FnOnce() -> Result<String>) -> (&'static str, String) {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split('?').next();
    match (method, path) {
        (Some("GET"), Some("/metrics")) => match metrics() {
            Ok(text) => ("200 OK", text),
            Err(why) => ("503 Service Unavailable", format!("{why:#}\n")),
        },
        (Some("GET"), _) => {
            ("404 Not Found", "not found; the metrics are at /metrics\n".to_owned())
        }
        _ => ("405 Method Not Allowed", "method not allowed; use GET /metrics\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_answered() {
        let ask = |line: &str| answer(line.as_bytes(), || Ok("m".to_owned()));
        assert_eq!(ask("GET /metrics HTTP/1.1\r\n\r\n"), ("200 OK", "m".to_owned()));
        assert_eq!(ask("GET /metrics?x=1 HTTP/1.0\r\n\r\n").0, "200 OK");
        for (line, status) in [
            ("GET / HTTP/1.1", "404"),
            ("GET /metrics/../etc/passwd HTTP/1.1", "404"),
            ("GET", "404"),
            ("POST /metrics HTTP/1.1", "405"),
            ("\u{0}\u{1}", "405"),
            ("", "405"),
        ] {
            assert!(ask(line).0.starts_with(status), "{line:?}");
        }
    }
}
