//! Errors in the system log, for engines that do not show why a container did not start.
//!
//! One datagram to `/dev/log`, which every log daemon serves, systemd's journal included: `journalctl -t
//! gpuslice-hook`. The hook does not wait for it or depend on it.

use crate::error::Error;
use crate::sys::socket::tell;
use std::path::Path;

/// The log daemons' socket (syslog(3)).
const LOG: &str = "/dev/log";
/// Of a daemon, an error: facility 3, severity 3 (RFC 3164).
const PRIORITY: u32 = 3 << 3 | 3;

/// Logs why a container did not start, or its clean-up failed.
pub(crate) fn note(container: &str, error: &Error) {
    // Errors are ignored: standard error has the message too.
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
