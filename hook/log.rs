//! Where people look when a container did not start and its engine does not show why: the system's log.
//!
//! One datagram to `/dev/log`, which every log daemon of a node serves, also systemd's journal:
//! `journalctl -t gpuslice-hook`. Nothing waits for it, and nothing depends on it.

use crate::error::Error;
use crate::sys::socket::tell;
use std::path::Path;

/// What log daemons serve (syslog(3)).
const LOG: &str = "/dev/log";
/// Of a daemon, an error: facility 3, severity 3 (RFC 3164).
const PRIORITY: u32 = 3 << 3 | 3;

/// Notes why a container did not start, or its end went wrong.
pub(crate) fn note(container: &str, error: &Error) {
    // The standard error says it as well; where nobody serves the log, that is all there is.
    let _ = tell(Path::new(LOG), line(container, error).as_bytes());
}

fn line(container: &str, error: &Error) -> String {
    let pid = std::process::id();
    let container: String = container.escape_debug().take(128).collect();
    format!("<{PRIORITY}>gpuslice-hook[{pid}]: container {container}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line() {
        let said = line("a\nb", &Error::Denied("no\nroom".into()));
        let (head, text) = said.split_once(": ").expect("two parts");
        assert!(head.starts_with("<27>gpuslice-hook["), "{said}");
        assert_eq!(text, r"container a\nb: no GPU slice: no\u{a}room");
    }
}
