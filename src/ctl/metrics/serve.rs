//! The HTTP that scrapers use: one `GET`, one response, connection closed.
//!
//! Each client has a thread, with limits on time and request size. There are at most [`CLIENTS_MAX`]; a new client
//! takes the place of the one that has been silent for longest. So silent clients delay no scrape, and scrapes do not
//! wait for each other but for the one list that they share.

use crate::clients::{Clients, WhenFull};
use anyhow::Result;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Largest request head, bytes; the rest is not read.
const REQUEST_BYTES_MAX: usize = 8192;
/// Time limit for a client's request, and for reading the response.
const CLIENT_WITHIN: Duration = Duration::from_secs(2);
/// Clients at a time.
const CLIENTS_MAX: usize = 32;
/// The end of a request's head.
const END: &[u8] = b"\r\n\r\n";

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Plain,
}

impl Format {
    /// The media type of a response.
    const fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format that a request's head asks for: OpenMetrics if it is accepted at all.
    fn asked(head: &str) -> Format {
        let mut accepts = head.lines().filter_map(|line| line.split_once(':'));
        let accepts = accepts.find(|(name, _)| name.trim().eq_ignore_ascii_case("accept"));
        match accepts.is_some_and(|(_, value)| value.contains("application/openmetrics-text")) {
            true => Format::OpenMetrics,
            false => Format::Plain,
        }
    }
}

/// Answers clients of `listener` with `metrics`, for ever.
pub fn serve(listener: &TcpListener, metrics: &(impl Fn(Format) -> Result<String> + Sync)) -> ! {
    let clients = Clients::new(CLIENTS_MAX, WhenFull::EndOldest);
    std::thread::scope(|scope| {
        loop {
            // The client has closed the connection already, or no descriptor is free.
            let Ok((client, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let Ok(Some(mine)) = clients.enter(&client) else { continue };
            let clients = &clients;
            let serves = move || {
                let _closed_or_late = answer_client(client, || clients.asked(mine), metrics);
                clients.leave(mine);
            };
            // Without memory for a thread the client is turned away.
            if std::thread::Builder::new().spawn_scoped(scope, serves).is_err() {
                clients.leave(mine);
            }
        }
    })
}

fn answer_client(
    mut client: TcpStream,
    asked: impl Fn(),
    metrics: &impl Fn(Format) -> Result<String>,
) -> io::Result<()> {
    client.set_write_timeout(Some(CLIENT_WITHIN))?;
    let head = head(&mut client)?;
    asked();
    let (status, kind, body) = answer(&String::from_utf8_lossy(&head), metrics);
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

/// Status, media type and body of the response to a request.
fn answer(
    head: &str,
    metrics: impl Fn(Format) -> Result<String>,
) -> (&'static str, &'static str, String) {
    let text = Format::Plain.content_type();
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split('?').next();
    match (method, path) {
        (Some("GET"), Some("/metrics")) => {
            let format = Format::asked(head);
            match metrics(format) {
                Ok(body) => ("200 OK", format.content_type(), body),
                Err(why) => ("503 Service Unavailable", text, format!("{why:#}\n")),
            }
        }
        (Some("GET"), _) => {
            ("404 Not Found", text, "not found; the metrics are at /metrics\n".to_owned())
        }
        _ => ("405 Method Not Allowed", text, "method not allowed; use GET /metrics\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_answered() {
        let ask = |line: &str| answer(line, |format| Ok(format!("{format:?}")));
        assert_eq!(ask("GET /metrics HTTP/1.1\r\n\r\n").2, "Plain");
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

    #[test]
    fn open_metrics_is_for_scrapers_that_accept_it() {
        let ask = |accept: &str| {
            let head = format!("GET /metrics HTTP/1.1\r\nHost: x\r\naCCept: {accept}\r\n\r\n");
            let (_, kind, body) = answer(&head, |format| Ok(format!("{format:?}")));
            (kind.split(';').next().unwrap_or_default().to_owned(), body)
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        let open = ("application/openmetrics-text".to_owned(), "OpenMetrics".to_owned());
        assert_eq!(ask(prometheus), open);
        assert_eq!(ask("text/html,*/*"), ("text/plain".to_owned(), "Plain".to_owned()));
    }

    #[test]
    fn a_refusal_is_no_metric() {
        let refused = answer("GET /metrics HTTP/1.1", |_| anyhow::bail!("permission denied"));
        assert_eq!(
            (refused.0, refused.2.as_str()),
            ("503 Service Unavailable", "permission denied\n")
        );
    }
}
