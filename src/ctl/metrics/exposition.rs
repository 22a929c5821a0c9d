//! A node as the text that Prometheus reads: OpenMetrics 1.0, and the older text format 0.0.4 of scrapers that do not
//! ask for it.
//!
//! `prometheus-client` writes OpenMetrics. The older format differs in the heads of families alone: a counter's head
//! has the name of its series, a family of `_info` is a gauge, and there are no lines `# UNIT` and `# EOF`.

use super::compat;
use super::families::{FAMILIES, Family, Kind, Source};
use super::node::{Labels, NodeView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// From here on not every whole number is a floating-point number.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// No counter has one.
type NoExemplar = Exemplar<Labels, f64>;

/// What a scrape shows.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The node; `None` for a daemon that does not answer.
    pub node: Option<NodeView>,
    /// An earlier view of it, if names of other exporters are wanted.
    pub compat: Option<compat::Base>,
}

/// The text of a scrape, in OpenMetrics 1.0.
pub fn open_metrics(scrape: Scrape) -> String {
    let mut registry = Registry::default();
    let scrape = Arc::new(scrape);
    registry
        .sub_registry_with_prefix("gpuslice")
        .register_collector(Box::new(Own(Arc::clone(&scrape))));
    if scrape.compat.is_some() {
        registry.register_collector(Box::new(compat::Names(scrape)));
    }
    let mut text = String::new();
    // Into a string: cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// The same in the text format 0.0.4.
pub fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            let help = help.strip_prefix(name).unwrap_or_default();
            text.push_str(&format!("# HELP {name}{suffix}{help}\n# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Writes a family's head, and a line for each of its series.
pub fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, kind): (&str, &str, Kind),
    series: Vec<(Labels, f64)>,
) -> fmt::Result {
    if series.is_empty() {
        return Ok(());
    }
    let (name, metric) = match kind {
        Kind::Gauge => (name, MetricType::Gauge),
        Kind::Counter => (name.strip_suffix("_total").unwrap_or(name), MetricType::Counter),
        Kind::Info => (name.strip_suffix("_info").unwrap_or(name), MetricType::Info),
    };
    let mut family = encoder.encode_descriptor(name, help, None, metric)?;
    for (labels, value) in series {
        match kind {
            Kind::Info => family.encode_info(&labels)?,
            _ if labels.is_empty() => number(kind, value, &mut family)?,
            _ => number(kind, value, &mut family.encode_family(&labels)?)?,
        }
    }
    Ok(())
}

/// Writes a value; a whole number without a fraction.
fn number(kind: Kind, value: f64, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
    let whole = value.fract() == 0.0 && (0.0..WHOLE_MAX).contains(&value);
    match (kind, whole) {
        (Kind::Counter, true) => encoder.encode_counter(&(value as u64), None::<&NoExemplar>),
        (Kind::Counter, false) => encoder.encode_counter(&value, None::<&NoExemplar>),
        (_, true) => encoder.encode_gauge(&(value as u64)),
        (_, false) => encoder.encode_gauge(&value),
    }
}

/// Our own families.
#[derive(Debug)]
struct Own(Arc<Scrape>);

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let up = f64::from(u8::from(self.0.node.is_some()));
        let head = ("up", "1 if gpusliced answers, 0 if not.", Kind::Gauge);
        encode(&mut encoder, head, vec![(Labels::new(), up)])?;
        let absent = NodeView::default();
        let node = self.0.node.as_ref().unwrap_or(&absent);
        let labels = Known::of(node);
        for family in FAMILIES {
            let head = (family.name, family.help, family.kind);
            encode(&mut encoder, head, series(family, node, &labels))?;
        }
        Ok(())
    }
}

/// The labels of each GPU and slice, which all families share.
struct Known {
    gpus: Vec<Labels>,
    slices: Vec<Labels>,
}

impl Known {
    fn of(node: &NodeView) -> Known {
        Known {
            gpus: node.gpus().map(|gpu| gpu.labels()).collect(),
            slices: node.slices().map(|slice| slice.labels()).collect(),
        }
    }
}

/// All series of a family.
fn series(family: &Family, node: &NodeView, known: &Known) -> Vec<(Labels, f64)> {
    let and = |labels: &Labels, more: Labels| labels.iter().cloned().chain(more).collect();
    let gpus = || node.gpus().zip(&known.gpus);
    let slices = || node.slices().zip(&known.slices);
    match family.source {
        Source::Node(of) => of(node).map(|value| (Labels::new(), value)).into_iter().collect(),
        Source::Own(of) => of(node),
        Source::Gpu(of) => {
            gpus().filter_map(|(gpu, labels)| Some((labels.clone(), of(gpu)?))).collect()
        }
        Source::GpuInfo(of) => gpus().map(|(gpu, labels)| (and(labels, of(gpu)), 1.0)).collect(),
        Source::Slice(of) => {
            slices().filter_map(|(slice, labels)| Some((labels.clone(), of(slice)?))).collect()
        }
        Source::Slices(of) => {
            let all = slices().flat_map(|(slice, labels)| {
                of(slice).into_iter().map(|(more, value)| (and(labels, more), value))
            });
            all.collect()
        }
    }
}
