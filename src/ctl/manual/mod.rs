//! `gpuslice manual`: writes the manual pages, from the same description as `--help` and from the table of metrics.
//!
//! `gpuslice(1)` and a page for each command come from clap's description; `gpuslice-metrics(7)` lists all metrics.
//! `make install` calls this; so no page is written by hand, and none can differ from the program.

use crate::metrics::families::{FAMILIES, Family, Kind, Source};
use anyhow::{Context, Result};
use clap_mangen::roff::{Roff, bold, italic, roman};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Title of the manual.
const MANUAL: &str = "gpuslice";

/// Options of `gpuslice manual`.
#[derive(clap::Args)]
pub struct Options {
    /// Directory for the pages
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs `gpuslice manual` for the program that `program` describes.
///
/// # Errors
/// The directory cannot be written.
pub fn main(program: clap::Command, options: &Options) -> Result<ExitCode> {
    let dir = &options.directory;
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    clap_mangen::generate_to(program, dir).with_context(|| dir.display().to_string())?;
    write(dir, "gpuslice-metrics.7", &metrics_page().to_roff())?;
    write(dir, "metrics.md", &metrics_table())?;
    Ok(ExitCode::SUCCESS)
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// The page of all metrics.
fn metrics_page() -> Roff {
    let mut page = Roff::new();
    let source = concat!("gpuslice ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["gpuslice-metrics", "7", "", source, MANUAL]);
    page.control("SH", ["NAME"]);
    page.text([roman("gpuslice-metrics - metrics of slices and GPUs for Prometheus")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([
        bold("gpuslice metrics"),
        roman(
            " prints or serves these metrics. All names begin with gpuslice_. Values are in base units: bytes, \
             seconds, ratios from 0 to 1. Counters begin anew with the daemon or the slice. A user that may not ask \
             the daemon gets an error and no metric.",
        ),
    ]);
    page.control("SH", ["LABELS"]);
    for (subject, labels) in [
        ("Series of a GPU", "gpu (its index), UUID"),
        (
            "Series of a slice",
            "those of its GPU; slice (the container's id, or claim. and the claim's id), name; in Kubernetes namespace, pod, container, pod_uid",
        ),
    ] {
        page.control("TP", []);
        page.text([roman(subject)]);
        page.text([roman(labels)]);
    }
    page.text([roman("Further labels are named with each metric.")]);
    page.control("SH", ["METRICS"]);
    entry(&mut page, "gpuslice_up", "gauge", "1 if gpusliced answers, 0 if not.");
    for family in FAMILIES {
        let name = format!("gpuslice_{}", family.name);
        entry(&mut page, &name, &kind_and_labels(family), family.help);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("gpuslice"), roman("(1), "), bold("gpusliced"), roman("(8)")]);
    page
}

/// The same as a page of the documentation.
fn metrics_table() -> String {
    let mut text = "# Metrics\n\nAll names begin with `gpuslice_`. A series of a GPU has the labels `gpu` (its index) and `UUID`; \
         a series of a slice\nhas these, `slice` and `name`, and in Kubernetes `namespace`, `pod`, `container` \
         and `pod_uid`.\n\n| name | type, labels | meaning |\n|---|---|---|\n\
         | `up` | gauge | 1 if gpusliced answers, 0 if not. |\n"
        .to_owned();
    for family in FAMILIES {
        let (kind, help) = (kind_and_labels(family), family.help);
        text += &format!("| `{}` | {kind} | {help} |\n", family.name);
    }
    text
}

fn entry(page: &mut Roff, name: &str, kind: &str, help: &str) {
    page.control("TP", []);
    page.text([bold(name), roman(" ("), italic(kind), roman(")")]);
    page.text([roman(help)]);
}

/// As `counter, each slice, cause`.
pub fn kind_and_labels(family: &Family) -> String {
    let kind = match family.kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
        Kind::Info => "always 1",
    };
    let about = match family.source {
        Source::Node(_) | Source::Own(_) => "",
        Source::Gpu(_) | Source::GpuInfo(_) => "each GPU",
        Source::Slice(_) | Source::Slices(_) => "each slice",
    };
    let words = [kind, about].into_iter().filter(|word| !word.is_empty());
    words.chain(family.labels.iter().copied()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_metric() {
        let page = metrics_page().to_roff();
        for family in FAMILIES {
            let name = family.name.replace('-', "\\-");
            assert!(page.contains(&format!("gpuslice_{name}")), "{}", family.name);
        }
        assert!(page.contains("counter, each slice, cause"), "{page}");
    }
}
