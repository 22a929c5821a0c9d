//! The details: for each node, a line for each pod.

use super::columns::align;
use super::nodes::{Cluster, Shared, Tenant};
use super::{Extra, percent};
use std::fmt::Write;

/// Dashes beyond the length of the first node's pods.
const LINE_LONGER: usize = 10;

/// The tables. Without extra columns they have the bytes that `kubectl-inspect-gpushare -d` prints.
#[must_use]
pub fn render(cluster: &Cluster, extra: Extra) -> String {
    let (mut text, mut dashes) = (String::new(), 0);
    for node in cluster.nodes.iter().filter(|node| node.memory > 0) {
        let address = node.address.as_deref().unwrap_or("unknown");
        let _ = write!(text, "\nNAME:\t{}\nIPADDRESS:\t{address}\n\n", node.name);
        text.push_str(&heading(node, extra));
        let pods = pods(node, extra);
        if dashes == 0 {
            dashes = pods.len() + LINE_LONGER;
        }
        text.push_str(&pods);
        let used = node.used();
        let _ = writeln!(text, "Allocated :\t{used} ({}%)\t", percent(used, node.memory));
        let _ = writeln!(text, "Total :\t{} \t", node.memory);
        if let Some((claims, used)) = node.real().filter(|_| extra.more) {
            let _ = writeln!(text, "Claims :\t{claims} \t");
            let _ = writeln!(text, "Used (MiB) :\t{used} \t");
        }
        let _ = writeln!(text, "{}", "-".repeat(dashes));
    }
    let (used, total) = cluster.totals();
    text.push_str("\n\nAllocated/Total GPU Memory In Cluster:\t");
    let _ = writeln!(text, "{used}/{total} ({}%)\t", percent(used, total));
    let marks = cluster.nodes.iter().flat_map(Shared::marks);
    align(&text) + &marks.map(|mark| mark + "\n").collect::<String>()
}

fn heading(node: &Shared, extra: Extra) -> String {
    let mut line = String::from("NAME\tNAMESPACE\t");
    for gpu in 0..node.gpus {
        let _ = write!(line, "GPU{gpu}(Allocated)\t");
    }
    if node.has_pending() {
        line.push_str("Pending(Allocated)\t");
    }
    if extra.more {
        line.push_str("CORES(Allocated)\t");
    }
    line.push('\n');
    line
}

/// The pods in the order of their first GPU; pods of an unknown GPU are last.
fn pods(node: &Shared, extra: Extra) -> String {
    let first = |tenant: &&Tenant| {
        let gpus = tenant.memory.keys().map(|gpu| gpu.unwrap_or(u64::MAX));
        gpus.min().unwrap_or(u64::MAX)
    };
    let mut tenants: Vec<&Tenant> = node.tenants.iter().collect();
    tenants.sort_by_key(first);
    let mut text = String::new();
    for tenant in tenants {
        let _ = write!(text, "{}\t{}\t", tenant.name, tenant.namespace);
        let unknown = node.has_pending().then_some(None);
        for gpu in (0..node.gpus).map(Some).chain(unknown) {
            let _ = write!(text, "{}\t", tenant.memory.get(&gpu).copied().unwrap_or(0));
        }
        if extra.more {
            let _ = write!(text, "{}\t", tenant.cores);
        }
        text.push('\n');
    }
    text
}
