//! `gpuslice manual`: writes the manual pages, from the same description as `--help` and from the table of metrics.
//!
//! `gpuslice(1)` and a page for each command come from clap's description, `gpusliced.toml(5)` from the packaged
//! configuration; `gpuslice-metrics(7)` lists all metrics. `make install` calls this; so no page is written by hand,
//! and none can differ from the program.

mod configuration;
mod text;

use crate::metrics::families::{FAMILIES, Family, Kind, Source};
use anyhow::{Context, Result};
use clap::builder::Resettable;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Title of the manual.
const MANUAL: &str = "gpuslice";
/// The program and its version, in the foot of each page.
const SOURCE: &str = concat!("gpuslice ", env!("CARGO_PKG_VERSION"));

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
    let mut program = program.disable_help_subcommand(true);
    program.build();
    commands(program, dir)?;
    write(dir, "gpusliced.toml.5", &configuration::page().to_roff())?;
    write(dir, "gpuslice-metrics.7", &metrics_page().to_roff())?;
    write(dir, "metrics.md", &metrics_table())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and of each below it.
fn commands(command: clap::Command, dir: &Path) -> Result<()> {
    let below = command.get_subcommands().filter(|it| !it.is_hide_set());
    below.cloned().try_for_each(|it| commands(it, dir))?;
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    write(dir, &format!("{name}.1"), &command_page(command)?)
}

/// clap's sections, then the text that `--help` ends with.
fn command_page(command: clap::Command) -> Result<String> {
    let notes = command.get_after_help().map(ToString::to_string);
    let command = command.after_help(Resettable::Reset).version(Resettable::Reset);
    let command = command.mut_args(with_aliases);
    let man = Man::new(command).source(SOURCE).manual(MANUAL);
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut more = Roff::new();
    if let Some(notes) = &notes {
        more.control("SH", ["NOTES"]);
        text::add(&mut more, notes.lines(), false);
    }
    more.control("SH", ["SEE ALSO"]);
    more.text([
        bold("gpuslice"),
        roman("(1), "),
        bold("gpusliced"),
        roman("(8), "),
        bold("gpusliced.toml"),
        roman("(5), "),
        bold("gpuslice-metrics"),
        roman("(7)"),
    ]);
    Ok(String::from_utf8(page)? + &more.to_roff())
}

/// An option whose other names are in its text: clap's pages leave them out.
fn with_aliases(option: clap::Arg) -> clap::Arg {
    let names = option.get_visible_aliases().unwrap_or_default();
    if names.is_empty() {
        return option;
    }
    let names: Vec<String> = names.into_iter().map(|name| format!("--{name}")).collect();
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    option.help(format!("{help} [aliases: {}]", names.join(", ")))
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// The page of all metrics.
fn metrics_page() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["gpuslice-metrics", "7", "", SOURCE, MANUAL]);
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
    page.control("PP", []);
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
        assert!(
            page.contains("\n.PP\nFurther labels"),
            "a paragraph, not a part of the last label: {page}"
        );
    }
}
