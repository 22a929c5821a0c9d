//! Requests and answers of the web view. Pure: bytes in, a request or a refusal out.
//!
//! A browser sends requests in the name of any page that it shows. Three checks keep foreign pages out: a request has
//! a `Host` of this server, so that a name which a foreign page lets point here is refused (DNS rebinding); what a
//! browser marks as coming from another site is refused; and each request has the token that the command printed, which
//! also keeps other users of the machine out.

use std::net::{IpAddr, SocketAddr};

/// Largest head of a request, bytes.
pub const HEAD_BYTES_MAX: usize = 8_192;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;
/// The cookie's name.
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
pub const NOT_FOUND: Status = status("404 Not Found", "there is no such page; go to /");
pub const METHOD: Status = status("405 Method Not Allowed", "this view can only be read");
pub const WRONG_HOST: Status = status(
    "421 Misdirected Request",
    "this server has another name; open the address that gpuslice web has printed, or add --host NAME",
);
pub const TOO_LONG: Status =
    status("431 Request Header Fields Too Large", "the request is too long");
pub const BUSY: Status =
    status("503 Service Unavailable", "too many views are open; close one of them");

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
    /// The page's address has the token: the answer sets the cookie.
    Enter,
}

/// What is accepted.
pub struct Rules {
    /// The names under which the server may be addressed, without ports.
    hosts: Vec<String>,
    port: u16,
    /// The token; none if the view is open to all who reach it.
    token: Option<String>,
}

impl Rules {
    /// The rules of a server at this address, which has these further names.
    pub fn new(at: SocketAddr, names: &[String], token: Option<String>) -> Rules {
        let literal = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let mut hosts: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        match at.ip() {
            ip if ip.is_loopback() => {
                hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
                hosts.push(literal(ip));
            }
            ip if !ip.is_unspecified() => hosts.push(literal(ip)),
            _ => {}
        }
        Rules { hosts, port: at.port(), token }
    }

    /// The cookie of the token.
    pub fn cookie(&self) -> String {
        let token = self.token.as_deref().unwrap_or_default();
        format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict")
    }

    fn is_host(&self, host: &str) -> bool {
        let host = host.trim().to_ascii_lowercase();
        let bracket = host.rfind(']').unwrap_or(0);
        let (name, port) = match host[bracket..].rfind(':') {
            Some(at) => (&host[..bracket + at], &host[bracket + at + 1..]),
            None => (host.as_str(), "80"),
        };
        port.parse() == Ok(self.port) && self.hosts.iter().any(|known| known == name)
    }

    /// Whether it is the token, in a time that does not tell where they differ.
    fn is_token(&self, given: &str) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let differs = token.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        token.len() == given.len() && differs == 0
    }

    /// Judges the head of a request. `None` if it is not complete.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn judge(&self, head: &[u8]) -> Result<Option<Asked>, Status> {
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
        if !value("host")?.is_some_and(|host| self.is_host(host)) {
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
        let mut tokens = cookies.filter_map(|it| it.strip_prefix(COOKIE)?.strip_prefix('='));
        if self.token.is_some() && !tokens.any(|token| self.is_token(token)) {
            return Err(NO_TOKEN);
        }
        let page = match path {
            "/" => Page::Index,
            "/style.css" => Page::Style,
            "/app.js" => Page::Script,
            "/stream" => Page::Stream,
            "/figures.json" => Page::Figures,
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
            token.map(str::to_owned),
        )
    }

    fn ask(rules: &Rules, lines: &str) -> Result<Option<Asked>, Status> {
        rules.judge(format!("{}\r\n\r\n", lines.replace('\n', "\r\n")).as_bytes())
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
        // an address that stands for all has no name of its own
        let all = rules("0.0.0.0:80", None);
        assert_eq!(ask(&all, "GET / HTTP/1.1\nHost: 0.0.0.0"), Err(WRONG_HOST));
        assert_eq!(ask(&all, "GET / HTTP/1.1\nHost: node-1"), fine);
        assert_eq!(
            ask(&rules("[2001:db8::1]:80", None), "GET / HTTP/1.1\nHost: [2001:db8::1]"),
            fine
        );
    }

    #[test]
    fn a_foreign_page_and_a_stranger_read_nothing() {
        let here = rules("127.0.0.1:9878", Some("5ec2e7"));
        let get = |target: &str, more: &str| {
            ask(&here, &format!("GET {target} HTTP/1.1\nHost: localhost:9878\n{more}X: y"))
        };
        assert_eq!(get("/", ""), Err(NO_TOKEN));
        assert_eq!(get("/figures.json", "Cookie: gpuslice=5ec2e\n"), Err(NO_TOKEN));
        assert_eq!(get("/figures.json", "Cookie: gpuslice=5ec2e8\n"), Err(NO_TOKEN));
        assert_eq!(get("/?token=5ec2e70", ""), Err(NO_TOKEN));
        assert_eq!(get("/?token=", ""), Err(NO_TOKEN));
        assert_eq!(get("/?a=b&token=5ec2e7", ""), Ok(Some(Asked::Enter)));
        let mine = "Cookie: a=b; gpuslice=5ec2e7; c=d\n";
        assert_eq!(get("/stream", mine), Ok(Some(Asked::Page(Page::Stream))));
        assert_eq!(get("/stream?x", mine), Ok(Some(Asked::Page(Page::Stream))));
        assert_eq!(get("/../etc/passwd", mine), Err(NOT_FOUND));
        let foreign = format!("{mine}Sec-Fetch-Site: cross-site\n");
        assert_eq!(get("/stream", &foreign), Err(FOREIGN));
        let own = format!("{mine}Sec-Fetch-Site: same-origin\n");
        assert_eq!(get("/app.js", &own), Ok(Some(Asked::Page(Page::Script))));
        let post = "POST / HTTP/1.1\nHost: localhost:9878\nCookie: gpuslice=5ec2e7";
        assert_eq!(ask(&here, post), Err(METHOD));
    }

    #[test]
    fn a_head_is_bounded_and_whole() {
        let here = rules("127.0.0.1:1", None);
        assert_eq!(here.judge(b""), Ok(None));
        assert_eq!(here.judge(b"GET / HTTP/1.1\r\nHost: localhost:1\r\n"), Ok(None));
        assert_eq!(here.judge(b"\0\x01\x02 "), Err(MALFORMED));
        let long = [b"GET /".to_vec(), vec![b'x'; HEAD_BYTES_MAX]].concat();
        assert_eq!(here.judge(&long), Err(TOO_LONG));
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
            rules("127.0.0.1:1", Some("x")).cookie().starts_with("gpuslice=x; Path=/; HttpOnly")
        );
    }
}
