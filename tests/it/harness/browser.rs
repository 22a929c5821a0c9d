//! Headless Chromium, driven through a pair of pipes by its DevTools protocol: JSON messages, each of which a zero byte
//! ends.

use super::PATIENCE;
use super::process::KillOnDrop;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Chromium, which `tests/run` installs.
pub fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join("chromium")).find(|it| it.exists())
}

/// A browser with one page.
pub struct Browser {
    _child: KillOnDrop,
    to: File,
    from: File,
    /// What was read beyond the last message.
    rest: Vec<u8>,
    last: u64,
    session: String,
}

impl Browser {
    /// Starts it with its files in `dir`, and opens a page of this size at `url`.
    pub fn open(program: &Path, dir: &Path, (width, height): (u32, u32), url: &str) -> Browser {
        let (theirs_in, to) = std::io::pipe().expect("a pipe");
        let (from, theirs_out) = std::io::pipe().expect("a pipe");
        let mut command = Command::new(program);
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", dir.display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let ends = [theirs_in.as_raw_fd(), theirs_out.as_raw_fd()];
        let place = move || {
            // SAFETY: plain system calls on this child's own numbers; first out of each other's way.
            let high = ends.map(|fd| unsafe { libc::fcntl(fd, libc::F_DUPFD, 64) });
            // SAFETY: as above.
            let placed = unsafe { [libc::dup2(high[0], 3), libc::dup2(high[1], 4)] };
            match placed.contains(&-1) {
                true => Err(std::io::Error::last_os_error()),
                false => Ok(()),
            }
        };
        // SAFETY: only system calls between fork and exec.
        unsafe { command.pre_exec(place) };
        let child = KillOnDrop(command.spawn().expect("it starts"));
        let (to, from) = (std::os::fd::OwnedFd::from(to), std::os::fd::OwnedFd::from(from));
        let (to, from, session) = (to.into(), from.into(), String::new());
        let mut browser = Browser { _child: child, to, from, rest: Vec::new(), last: 0, session };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let id = page["targetId"].clone();
        let page =
            browser.call("Target.attachToTarget", json!({ "targetId": id, "flatten": true }));
        browser.session = page["sessionId"].as_str().expect("a session").to_owned();
        browser.call("Page.navigate", json!({ "url": url }));
        browser
    }

    /// Gives the page another size.
    pub fn resize(&mut self, (width, height): (u32, u32)) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Calls a method, and returns its result; events meanwhile are dropped.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let text = format!("{message}\0");
        self.to.write_all(text.as_bytes()).expect("it reads");
        loop {
            let message = self.message();
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn message(&mut self) -> Value {
        let mut buffer = [0; 65_536];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&message[..end]).expect("JSON");
            }
            let read = self.from.read(&mut buffer).expect("it writes");
            assert!(read > 0, "the browser has ended");
            self.rest.extend_from_slice(&buffer[..read]);
        }
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let found = self.call("Runtime.evaluate", json!({ "expression": expression }));
        found["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    pub fn await_true(&mut self, expression: &str) {
        let begin = Instant::now();
        while self.value(expression) != true {
            let page = || "document.documentElement.outerHTML";
            assert!(begin.elapsed() < PATIENCE, "not {expression}: {}", self.value(page()));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A picture of the page, as PNG.
    pub fn picture(&mut self) -> Vec<u8> {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        from_base64(shot["data"].as_str().expect("a text"))
    }
}

/// The bytes of a text in base64.
fn from_base64(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in text.bytes().filter_map(|c| digits.iter().position(|it| *it == c)) {
        (bits, count) = (bits << 6 | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
