//! Events: sentences about an object, which `kubectl describe` shows.

use super::client::{Client, status};
use anyhow::Result;
use serde_json::{Value, json};
use std::time::SystemTime;

/// A warning about an object.
#[derive(Debug)]
pub struct Warning<'a> {
    /// The object: `apiVersion`, `kind`, `name`, `uid`, and for one of a namespace `namespace`.
    pub object: Value,
    /// The event's own name. One of the same name is written once.
    pub name: String,
    /// One word.
    pub reason: &'a str,
    pub message: String,
    /// The part of gpuslice that tells it, as `gpuslice.io/agent`.
    pub component: &'a str,
    /// The node or the pod of that part.
    pub instance: &'a str,
}

impl Warning<'_> {
    /// The event as the API server keeps it. About an object without a namespace it is in `default`.
    #[must_use]
    pub fn event(&self, now: SystemTime) -> Value {
        let time = humantime::format_rfc3339_seconds(now).to_string();
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": self.name, "namespace": self.namespace() },
            "involvedObject": self.object,
            "type": "Warning",
            "reason": self.reason,
            "message": self.message,
            "source": { "component": "gpuslice", "host": self.instance },
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        })
    }

    /// Writes it, unless one of its name is there.
    ///
    /// # Errors
    /// The API server refuses, or cannot be reached.
    pub async fn write(&self, api: &Client) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/events", self.namespace());
        match api.create(&path, &self.event(SystemTime::now())).await {
            // It was told before this process started.
            Err(why) if status(&why).is_some_and(|it| it.as_u16() == 409) => Ok(()),
            done => done.map(drop),
        }
    }

    fn namespace(&self) -> &str {
        self.object["namespace"].as_str().unwrap_or("default")
    }
}
