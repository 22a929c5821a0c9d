//! The manual page `gpusliced.toml(5)`, from the packaged configuration, which explains each key and holds each
//! default.

use super::text;
use clap_mangen::roff::{Roff, bold, roman};

/// The configuration as it is packaged; a test of the daemon's compares it with the defaults.
const PACKAGED: &str = include_str!("../../../packaging/gpusliced.toml");

/// A key of the configuration.
struct Key<'a> {
    /// Its lines, as `policy = "soft"`; commented out where there is no default.
    lines: Vec<&'a str>,
    /// What it means, line by line.
    about: Vec<&'a str>,
}

/// The file's head, and its keys in order.
fn keys() -> (Vec<&'static str>, Vec<Key<'static>>) {
    let mut paragraphs = PACKAGED.split("\n\n").map(|paragraph| paragraph.lines());
    let comment = |line: &'static str| {
        line.strip_prefix("# ").or(line.strip_prefix("#").filter(|rest| rest.is_empty()))
    };
    let head = paragraphs.next().into_iter().flatten().filter_map(comment).collect();
    let keys = paragraphs.map(|lines| {
        let (about, lines): (Vec<&str>, Vec<&str>) =
            lines.partition(|line| comment(line).is_some());
        Key { lines, about: about.into_iter().filter_map(comment).collect() }
    });
    (head, keys.collect())
}

/// The page of the configuration.
pub fn page() -> Roff {
    let (head, keys) = keys();
    let mut page = Roff::new();
    let source = concat!("gpusliced ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["gpusliced.toml", "5", "", source, "gpuslice"]);
    page.control("SH", ["NAME"]);
    page.text([roman("gpusliced.toml - configuration of gpusliced")]);
    page.control("SH", ["DESCRIPTION"]);
    text::add(&mut page, head, false);
    page.control("SH", ["KEYS"]);
    for key in &keys {
        page.control("TP", []);
        let lines = key.lines.iter().map(|line| line.strip_prefix('#').unwrap_or(line));
        page.text([bold(lines.collect::<Vec<_>>().join("; "))]);
        text::add(&mut page, key.about.iter().copied(), true);
    }
    page.control("SH", ["FILES"]);
    page.text([roman("/etc/gpuslice/gpusliced.toml")]);
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("gpusliced"), roman("(8), "), bold("gpuslice"), roman("(1)")]);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each key of the packaged file is an entry with an explanation.
    #[test]
    fn every_key_is_explained() {
        let (head, keys) = keys();
        assert!(head[0].starts_with("Configuration of gpusliced"), "{head:?}");
        let table: toml_edit::DocumentMut = PACKAGED.parse().expect("the packaged file is TOML");
        for (name, _) in table.iter() {
            let key = keys.iter().find(|key| key.lines.iter().any(|line| line.starts_with(name)));
            assert!(key.is_some_and(|key| !key.about.is_empty()), "{name}");
        }
        assert!(keys.iter().all(|key| !key.lines.is_empty() && !key.about.is_empty()));
        assert!(page().to_roff().contains("slices_per_gpu = 16"));
    }
}
