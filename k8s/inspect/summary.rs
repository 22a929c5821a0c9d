//! The summary: a line for each node.

use super::columns::align;
use super::nodes::{Cluster, Shared};
use super::{Extra, percent};
use std::fmt::Write;

/// Dashes beyond the length of the first node's line, which has a tab for each column.
const LINE_LONGER: usize = 20;

/// The table. Without extra columns it has the bytes that `kubectl-inspect-gpushare` prints.
#[must_use]
pub fn render(cluster: &Cluster, extra: Extra) -> String {
    let gpus = cluster.nodes.iter().map(|node| node.gpus).max().unwrap_or(0);
    let pending = cluster.has_pending();
    let mut text = String::from("NAME\tIPADDRESS\t");
    for gpu in 0..gpus {
        let _ = write!(text, "GPU{gpu}(Allocated/Total)\t");
    }
    if pending {
        text.push_str("PENDING(Allocated)\t");
    }
    if extra.more {
        text.push_str("CORES(Allocated/Total)\tCLAIMS\tUSED(MiB)\t");
    }
    let _ = writeln!(text, "GPU Memory({})", cluster.unit());
    let mut dashes = 0;
    for node in cluster.nodes.iter().filter(|node| node.memory > 0) {
        let line = line(node, gpus, pending, extra);
        if dashes == 0 {
            dashes = line.len() + LINE_LONGER;
        }
        text.push_str(&line);
    }
    let (used, total) = cluster.totals();
    let _ = writeln!(text, "{}", "-".repeat(dashes));
    let _ = writeln!(text, "Allocated/Total GPU Memory In Cluster:");
    let _ = writeln!(text, "{used}/{total} ({}%)\t", percent(used, total));
    let marks = cluster.nodes.iter().flat_map(Shared::marks);
    align(&text) + &marks.map(|mark| mark + "\n").collect::<String>()
}

fn line(node: &Shared, gpus: u64, pending: bool, extra: Extra) -> String {
    let mut line = format!("{}\t{}\t", node.name, node.address.as_deref().unwrap_or("unknown"));
    for gpu in 0..gpus {
        let (used, total) = match gpu < node.gpus {
            true => (node.used_on(Some(gpu)), node.memory_of_gpu()),
            false => (0, 0),
        };
        let _ = write!(line, "{used}/{total}\t");
    }
    if pending {
        let used = node.used_on(None);
        let shown = if node.has_pending() { used.to_string() } else { String::new() };
        let _ = write!(line, "{shown}\t");
    }
    if extra.more {
        let _ = write!(line, "{}/{}\t", node.used_cores(), node.cores);
        let _ = match node.real() {
            Some((claims, used)) => write!(line, "{claims}\t{used}\t"),
            None => write!(line, "-\t-\t"),
        };
    }
    let _ = writeln!(line, "{}/{}", node.used(), node.memory);
    line
}
