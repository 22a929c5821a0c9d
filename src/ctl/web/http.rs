//! Requests and answers of the web view. Pure: bytes in, a request or a refusal out.
//!
//! A browser sends requests in the name of any page that it shows. Three checks keep foreign pages out: a request has
//! a `Host` of this server, so that a name which a foreign page lets point here is refused (DNS rebinding); what a
//! browser marks as coming from another site is refused; and each request has the token that the command printed, which
//! also keeps other users of the machine out. A browser keeps the token as a cookie, and sends a host's cookies to all
//! of its ports, another user's included. So the pages are in a directory with a random name, for which the cookie is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Largest head of a request, bytes.
pub const HEAD_BYTES_MAX: usize = 8_192;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// The cookie's name, before the server's port.
const COOKIE: &str = "gpuslice";

/// A refusal or another answer without a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Number and phrase.
    pub line: &'static str,
    /// What is wrong and what to do, for the person.
    pub text: &'static str,
}

const fn status(line: &'static str, text: &'static str) -> Status {
    Status { line, text }
}

pub const MALFORMED: Status = status("400 Bad Request", "this is no HTTP request");
pub const NO_TOKEN: Status = status(
    "401 Unauthorized",
    "open the address that gpuslice web has printed: it ends in a token",
);
pub const FOREIGN: Status = status("403 Forbidden", "another site may not read this page");
pub const NOT_FOUND: Status = status(
    "404 Not Found",
    "there is no such page; open the address that gpuslice web has printed",
);
pub const METHOD: Status = status("405 Method Not Allowed", "this view can only be read");
pub const WRONG_HOST: Status = status(
    "421 Misdirected Request",
    "this server has another name; open the address that gpuslice web has printed, or add --host NAME",
);
pub const TOO_LONG: Status =
    status("431 Request Header Fields Too Large", "the request is too long");
pub const BUSY: Status =
    status("503 Service Unavailable", "too many pages are open; close one of them");

/// A page of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The page itself.
    Index,
    /// Its style.
    Style,
    /// Its script.
    Script,
    /// The stream of figures.
    Stream,
    /// The figures once, as JSON.
    Figures,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A page.
    Page(Page),
    /// The address that was printed, with the token: the answer sets the cookie and leads to the page.
    Enter,
}

/// An address as the host of a URL.
pub fn literal(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// The address that the host of a URL is, if it is one.
fn address(host: &str) -> Option<IpAddr> {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match v6 {
        Some(ip) => ip.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// A host and its port, which is `default` where none is given; `None` without a host, or with a port that is no
/// number.
fn split(host: &str, default: u16) -> Option<(String, u16)> {
    let bracket = host.rfind(']').unwrap_or(0);
    let (name, port) = match host[bracket..].rfind(':') {
        Some(at) => (&host[..bracket + at], host[bracket + at + 1..].parse().ok()?),
        None => (host, default),
    };
    (!name.is_empty()).then(|| (name.to_owned(), port))
}

/// Whether a name stands for all addresses of a machine, and so is none under which a browser knows it.
pub fn stands_for_all(name: &str) -> bool {
    let of_url = || split(name, 0).and_then(|(name, _)| address(&name));
    name.parse().ok().or_else(of_url).is_some_and(|ip: IpAddr| ip.is_unspecified())
}

/// What is accepted.
pub struct Rules {
    /// The names under which the server may be addressed, with ports.
    hosts: Vec<(String, u16)>,
    port: u16,
    /// The token; none if the view is open to all who reach it.
    token: Option<String>,
    /// The directory of the pages, between slashes; with a token, its name is random.
    pub directory: String,
}

impl Rules {
    /// The rules of a server at this address, which has these further names. `secret`: the token, and the name of the
    /// directory.
    pub fn new(at: SocketAddr, names: &[String], secret: Option<[String; 2]>) -> Rules {
        let named = |name: &String| split(&name.to_ascii_lowercase(), at.port());
        let mut hosts: Vec<(String, u16)> = names.iter().filter_map(named).collect();
        if at.ip().is_loopback() || at.ip().is_unspecified() {
            let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
            let local = loopback.map(literal).into_iter().chain(["localhost".to_owned()]);
            hosts.extend(local.map(|name| (name, at.port())));
        }
        if !at.ip().is_unspecified() {
            hosts.push((literal(at.ip()), at.port()));
        }
        let (token, directory) = match secret {
            Some([token, name]) => (Some(token), format!("/{name}/")),
            None => (None, "/".to_owned()),
        };
        Rules { hosts, port: at.port(), token, directory }
    }

    /// The cookie of the token.
    pub fn cookie(&self) -> String {
        let token = self.token.as_deref().unwrap_or_default();
        let (port, path) = (self.port, &self.directory);
        format!("{COOKIE}-{port}={token}; Path={path}; HttpOnly; SameSite=Strict")
    }

    /// Whether it is a name of this server for a connection to the address `local`. A server at all addresses of the
    /// machine has many, which come and go; the one to which the client has connected is one of them.
    fn is_host(&self, host: &str, local: IpAddr) -> bool {
        let Some((name, port)) = split(&host.trim().to_ascii_lowercase(), 80) else {
            return false;
        };
        let is_here = port == self.port && address(&name) == Some(local.to_canonical());
        is_here || self.hosts.contains(&(name, port))
    }

    /// Whether it is the token, in a time that does not tell where they differ.
    fn is_token(&self, given: &str) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let differs = token.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        token.len() == given.len() && differs == 0
    }

    /// Judges the head of a request that came to the address `local`. `None` if it is not complete.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn judge(&self, head: &[u8], local: IpAddr) -> Result<Option<Asked>, Status> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => return Ok(None),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(TOO_LONG);
            }
            Err(_) => return Err(MALFORMED),
        }
        let value = |name: &str| {
            let of_name = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
            let mut all = of_name.map(|it| std::str::from_utf8(it.value).map_err(|_| MALFORMED));
            match (all.next(), all.next()) {
                (one, None) => one.transpose(),
                (_, Some(_)) => Err(MALFORMED), // proxies disagree on which one counts
            }
        };
        if !value("host")?.is_some_and(|host| self.is_host(host, local)) {
            return Err(WRONG_HOST);
        }
        let site = value("sec-fetch-site")?;
        if !matches!(site, None | Some("same-origin" | "none" | "same-site")) {
            return Err(FOREIGN);
        }
        if request.method != Some("GET") {
            return Err(METHOD);
        }
        let target = request.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let given = query.split('&').find_map(|it| it.strip_prefix("token="));
        if let ("/", Some(given)) = (path, given) {
            return if self.is_token(given) { Ok(Some(Asked::Enter)) } else { Err(NO_TOKEN) };
        }
        let cookies = value("cookie")?.unwrap_or_default().split(';').map(str::trim);
        let name = format!("{COOKIE}-{}=", self.port);
        let mut tokens = cookies.filter_map(|it| it.strip_prefix(&name));
        if self.token.is_some() && !tokens.any(|token| self.is_token(token)) {
            return Err(NO_TOKEN);
        }
        let page = match path.strip_prefix(&self.directory) {
            Some("") => Page::Index,
            Some("style.css") => Page::Style,
            Some("app.js") => Page::Script,
            Some("stream") => Page::Stream,
            Some("figures.json") => Page::Figures,
            _ => return Err(NOT_FOUND),
        };
        Ok(Some(Asked::Page(page)))
    }
}

/// What every answer has: a browser loads nothing from elsewhere, runs no script of a tenant's text, and shows the page
/// in no frame.
const SAFE: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\nConnection: close\r\n";

/// The head of an answer; `more` are further header lines.
pub fn head(line: &str, kind: &str, more: &str) -> String {
    format!("HTTP/1.1 {line}\r\nContent-Type: {kind}\r\n{SAFE}{more}\r\n")
}

/// A whole answer.
pub fn answer(line: &str, kind: &str, body: &str) -> String {
    head(line, kind, &format!("Content-Length: {}\r\n", body.len())) + body
}

/// The answer to a page that may have no stream: an event that says so, since a browser's script cannot read another
/// answer. The page asks again after a while.
pub fn no_stream() -> String {
    let event = format!("retry: 10000\ndata: {}\n\n", serde_json::json!({ "refused": BUSY.text }));
    answer("200 OK", "text/event-stream", &event)
}

/// The answer to a refused request.
pub fn refusal(status: &Status) -> String {
    answer(status.line, "text/plain; charset=utf-8", &format!("{}\n", status.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(at: &str, token: Option<&str>) -> Rules {
        Rules::new(
            at.parse().expect("an address"),
            &["node-1".to_owned()],
            token.map(|token| [token, "d1r"].map(str::to_owned)),
        )
    }

    /// A request to 127.0.0.1.
    fn ask(rules: &Rules, lines: &str) -> Result<Option<Asked>, Status> {
        ask_at(rules, "127.0.0.1", lines)
    }

    fn ask_at(rules: &Rules, local: &str, lines: &str) -> Result<Option<Asked>, Status> {
        let head = format!("{}\r\n\r\n", lines.replace('\n', "\r\n"));
        rules.judge(head.as_bytes(), local.parse().expect("an address"))
    }

    #[test]
    fn only_names_of_this_server_are_served() {
        let here = rules("127.0.0.1:9878", None);
        let fine = Ok(Some(Asked::Page(Page::Index)));
        for (host, expected) in [
            ("127.0.0.1:9878", fine.clone()),
            ("localhost:9878", fine.clone()),
            ("[::1]:9878", fine.clone()),
            ("NODE-1:9878", fine.clone()),
            ("localhost", Err(WRONG_HOST)),
            ("localhost:80", Err(WRONG_HOST)),
            ("evil.example:9878", Err(WRONG_HOST)),
            ("127.0.0.1.evil.example:9878", Err(WRONG_HOST)),
            ("", Err(WRONG_HOST)),
            (":9878", Err(WRONG_HOST)),
            ("]:9878", Err(WRONG_HOST)),
        ] {
            assert_eq!(ask(&here, &format!("GET / HTTP/1.1\nHost: {host}")), expected, "{host:?}");
        }
        assert_eq!(ask(&here, "GET / HTTP/1.1"), Err(WRONG_HOST));
        let twice = "GET / HTTP/1.1\nHost: localhost:9878\nHost: evil.example";
        assert_eq!(ask(&here, twice), Err(MALFORMED));
        // a name with a port is behind a proxy: that port alone
        let names = ["gpu.example:443".to_owned(), "[2001:db8::1]:8443".to_owned()];
        let behind = Rules::new("127.0.0.1:9878".parse().expect("an address"), &names, None);
        for (host, expected) in [
            ("gpu.example:443", fine.clone()),
            ("[2001:db8::1]:8443", fine.clone()),
            ("gpu.example:9878", Err(WRONG_HOST)),
            ("gpu.example", Err(WRONG_HOST)),
        ] {
            assert_eq!(
                ask(&behind, &format!("GET / HTTP/1.1\nHost: {host}")),
                expected,
                "{host:?}"
            );
        }
        let all = rules("0.0.0.0:80", None);
        let for_all = ["0.0.0.0", "0.0.0.0:80", "[::]", "::", "[::]:80"].map(stands_for_all);
        assert_eq!((for_all, stands_for_all("node-1")), ([true; 5], false));
        assert_eq!(ask(&all, "GET / HTTP/1.1\nHost: node-1"), fine);
        assert_eq!(
            ask(&rules("[2001:db8::1]:80", None), "GET / HTTP/1.1\nHost: [2001:db8::1]"),
            fine
        );
    }

    /// A server at all addresses is known by the one to which the client has connected, and by no other.
    #[test]
    fn a_server_at_all_addresses_is_known_by_those_of_the_machine() {
        let all = rules("[::]:80", None);
        let fine = Ok(Some(Asked::Page(Page::Index)));
        for (local, host, expected) in [
            ("192.0.2.7", "192.0.2.7", fine.clone()),
            ("::ffff:192.0.2.7", "192.0.2.7", fine.clone()),
            ("2001:db8::1", "[2001:db8::1]:80", fine.clone()),
            ("2001:db8::1", "[2001:DB8:0::1]", fine.clone()),
            ("127.0.0.1", "localhost", fine.clone()),
            ("192.0.2.7", "node-1", fine),
            ("192.0.2.7", "192.0.2.8", Err(WRONG_HOST)),
            ("192.0.2.7", "203.0.113.5", Err(WRONG_HOST)),
            ("127.0.0.1", "0.0.0.0", Err(WRONG_HOST)),
            ("192.0.2.7", "192.0.2.7:81", Err(WRONG_HOST)),
            ("192.0.2.7", "192.0.2.7.evil.example", Err(WRONG_HOST)),
            ("192.0.2.7", "[evil.example]", Err(WRONG_HOST)),
        ] {
            let told = ask_at(&all, local, &format!("GET / HTTP/1.1\nHost: {host}"));
            assert_eq!(told, expected, "{host:?} at {local}");
        }
    }

    #[test]
    fn a_foreign_page_and_a_stranger_read_nothing() {
        let here = rules("127.0.0.1:9878", Some("5ec2e7"));
        let get = |target: &str, more: &str| {
            ask(&here, &format!("GET {target} HTTP/1.1\nHost: localhost:9878\n{more}X: y"))
        };
        assert_eq!(get("/", ""), Err(NO_TOKEN));
        assert_eq!(get("/d1r/figures.json", "Cookie: gpuslice-9878=5ec2e\n"), Err(NO_TOKEN));
        assert_eq!(get("/d1r/figures.json", "Cookie: gpuslice-9878=5ec2e8\n"), Err(NO_TOKEN));
        assert_eq!(get("/?token=5ec2e70", ""), Err(NO_TOKEN));
        assert_eq!(get("/?token=", ""), Err(NO_TOKEN));
        assert_eq!(get("/?a=b&token=5ec2e7", ""), Ok(Some(Asked::Enter)));
        let mine = "Cookie: gpuslice=x; gpuslice-9879=y; gpuslice-9878=5ec2e7; c=d\n";
        assert_eq!(get("/d1r/stream", mine), Ok(Some(Asked::Page(Page::Stream))));
        assert_eq!(get("/d1r/stream?x", mine), Ok(Some(Asked::Page(Page::Stream))));
        for path in ["/d1r/../etc/passwd", "/d1r", "/", "/stream", "/d1r//stream"] {
            assert_eq!(get(path, mine), Err(NOT_FOUND), "{path}");
        }
        let foreign = format!("{mine}Sec-Fetch-Site: cross-site\n");
        assert_eq!(get("/d1r/stream", &foreign), Err(FOREIGN));
        let own = format!("{mine}Sec-Fetch-Site: same-origin\n");
        assert_eq!(get("/d1r/app.js", &own), Ok(Some(Asked::Page(Page::Script))));
        let post = "POST / HTTP/1.1\nHost: localhost:9878\nCookie: gpuslice-9878=5ec2e7";
        assert_eq!(ask(&here, post), Err(METHOD));
    }

    #[test]
    fn a_head_is_bounded_and_whole() {
        let here = rules("127.0.0.1:1", None);
        let judge = |head: &[u8]| here.judge(head, IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(judge(b""), Ok(None));
        assert_eq!(judge(b"GET / HTTP/1.1\r\nHost: localhost:1\r\n"), Ok(None));
        assert_eq!(judge(b"\0\x01\x02 "), Err(MALFORMED));
        let long = [b"GET /".to_vec(), vec![b'x'; HEAD_BYTES_MAX]].concat();
        assert_eq!(judge(&long), Err(TOO_LONG));
        let many = format!("GET / HTTP/1.1\n{}Host: localhost:1", "a: b\n".repeat(HEADERS_MAX));
        assert_eq!(ask(&here, &many), Err(TOO_LONG));
    }

    #[test]
    fn every_answer_is_safe_and_whole() {
        let told = refusal(&NOT_FOUND);
        assert!(
            told.starts_with("HTTP/1.1 404 Not Found\r\n") && told.contains("default-src 'none'")
        );
        let (head, body) = told.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{told}");
        assert!(
            rules("127.0.0.1:1", Some("x"))
                .cookie()
                .starts_with("gpuslice-1=x; Path=/d1r/; HttpOnly")
        );
    }
}
