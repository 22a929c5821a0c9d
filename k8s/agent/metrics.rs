//! The agent's own metrics, for Prometheus.

use super::owners::Owners;
use super::unadmitted::Unadmitted;
use crate::http::{self, Plain};
use crate::listen::listen;
use anyhow::{Context, Result};
use hyper::{Method, StatusCode};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// Connections at a time, at most.
const CONNECTIONS_MAX: usize = 16;

/// Values that parts of the agent set.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    late: Arc<Mutex<Vec<Unadmitted>>>,
    owners: Option<watch::Receiver<Option<Arc<Owners>>>>,
}

impl Metrics {
    /// Metrics that tell these owners of GPUs.
    #[must_use]
    pub fn of(owners: watch::Receiver<Option<Arc<Owners>>>) -> Metrics {
        Metrics { owners: Some(owners), ..Metrics::default() }
    }

    /// The containers that run without their caps.
    pub fn unadmitted(&self, late: Vec<Unadmitted>) {
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = late;
    }

    /// The text that Prometheus reads.
    #[must_use]
    pub fn text(&self) -> String {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = format!(
            "# HELP gpuslice_agent_info The agent's version.\n# TYPE gpuslice_agent_info gauge\n\
             gpuslice_agent_info{{version=\"{}\"}} 1\n\
             # HELP gpuslice_agent_unadmitted_containers Containers that run for 30 s without having joined their claim.\n\
             # TYPE gpuslice_agent_unadmitted_containers gauge\ngpuslice_agent_unadmitted_containers {}\n\
             # HELP gpuslice_agent_unadmitted One such container: the container engine ignored its CDI device.\n\
             # TYPE gpuslice_agent_unadmitted gauge\n",
            env!("CARGO_PKG_VERSION"),
            late.len()
        );
        for one in &late {
            let labels = [
                ("namespace", &one.namespace),
                ("pod", &one.pod),
                ("pod_uid", &one.uid),
                ("container", &one.container),
                ("claim", &one.claim),
            ];
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
            let _ = writeln!(text, "gpuslice_agent_unadmitted{{{}}} 1", labels.join(","));
        }
        text.push_str(
            "# HELP gpuslice_agent_gpu_of_other A GPU that is not offered, since another program offers it.\n\
             # TYPE gpuslice_agent_gpu_of_other gauge\n",
        );
        let owners = self.owners.as_ref().and_then(|it| it.borrow().clone()).unwrap_or_default();
        for (uuid, owner) in owners.iter() {
            let owner = owner.name();
            let _ = writeln!(
                text,
                "gpuslice_agent_gpu_of_other{{UUID=\"{uuid}\",owner=\"{owner}\"}} 1"
            );
        }
        text
    }

    /// Serves `/metrics` until the process ends.
    ///
    /// # Errors
    /// The address is in use.
    pub async fn serve(self, address: SocketAddr) -> Result<()> {
        let listener = listen(address).await.context("metrics")?;
        let answer = move |request: hyper::Request<hyper::body::Incoming>| {
            let found = request.method() == Method::GET && request.uri().path() == "/metrics";
            let response = match found {
                true => http::text(StatusCode::OK, "text/plain; version=0.0.4", self.text()),
                false => http::text(
                    StatusCode::NOT_FOUND,
                    "text/plain",
                    "metrics are at /metrics\n".to_owned(),
                ),
            };
            std::future::ready(response)
        };
        http::serve(listener, Plain, CONNECTIONS_MAX, answer, std::future::pending()).await
    }
}

/// A label's value, with the characters that would end it escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_container_has_a_row() {
        let metrics = Metrics::default();
        assert!(metrics.text().contains("gpuslice_agent_unadmitted_containers 0\n"));
        metrics.unadmitted(vec![Unadmitted {
            namespace: "default".to_owned(),
            pod: "p".to_owned(),
            uid: "u".to_owned(),
            container: "a\"b\\".to_owned(),
            id: "1".to_owned(),
            claim: "u-c0".to_owned(),
        }]);
        let text = metrics.text();
        assert!(text.contains("gpuslice_agent_unadmitted_containers 1\n"), "{text}");
        let row = r#"gpuslice_agent_unadmitted{namespace="default",pod="p",pod_uid="u",container="a\"b\\",claim="u-c0"} 1"#;
        assert!(text.contains(row), "{text}");
    }
}
