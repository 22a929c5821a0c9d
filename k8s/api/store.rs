//! A copy of some of the server's objects, kept up to date by a watch.
//!
//! The list is read in pages. A watch continues from its version, and the server ends it after some minutes or when it
//! has forgotten that version. Then the list is read again. Without the server the copy stays as it was: pods run on
//! without it too.

use super::client::Client;
use super::objects::{ConfigMap, List, Metadata, Namespace, Node, Pod};
use anyhow::{Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// After this time the server ends a watch, and the next begins.
const WATCH_SECONDS: u32 = 290;
/// A watch without any event for this long is dead: the server sends bookmarks each minute.
pub const SILENCE: Duration = Duration::from_secs(100);
/// How long a copy can be late: its watch is dead, is given up, and the list is read again.
pub const LATE_MAX: Duration = SILENCE.saturating_mul(2);

/// An object with metadata.
pub trait Object: DeserializeOwned + Clone + Send + Sync + 'static {
    fn metadata(&self) -> &Metadata;
}

macro_rules! objects {
    ($($kind:ty),*) => {$(
        impl Object for $kind {
            fn metadata(&self) -> &Metadata {
                &self.metadata
            }
        }
    )*};
}

objects!(ConfigMap, Namespace, Node, Pod);

/// The objects by uid. `None`: the server has not answered yet.
pub type Objects<T> = Option<Arc<BTreeMap<String, T>>>;

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// Keeps a copy of the objects at a path of the API, until the receivers are gone.
pub async fn keep<T: Object>(client: Client, path: String, copy: watch::Sender<Objects<T>>) {
    while !copy.is_closed() {
        if let Err(error) = follow(&client, &path, &copy).await {
            warn!("watching {path}: {error:#}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Reads the list and follows its changes until the watch ends.
async fn follow<T: Object>(
    client: &Client,
    path: &str,
    copy: &watch::Sender<Objects<T>>,
) -> Result<()> {
    let list: List<Value> = client.list(path).await?;
    let uid = |object: T| (object.metadata().uid.clone(), object);
    let mut version = list.metadata.resource_version;
    let all = list.items.into_iter().filter_map(read).map(uid);
    copy.send_replace(Some(Arc::new(all.collect())));
    loop {
        let joint = if path.contains('?') { '&' } else { '?' };
        let watch = format!(
            "{path}{joint}watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        );
        let mut lines = client.watch(&watch).await?;
        while let Some(line) = tokio::time::timeout(SILENCE, lines.next()).await?? {
            let event: Event = serde_json::from_slice(&line)?;
            if event.kind == "ERROR" {
                bail!(
                    "{}",
                    event.object["message"].as_str().unwrap_or("the server ended the watch")
                );
            }
            if let Some(now) = event.object["metadata"]["resourceVersion"].as_str() {
                now.clone_into(&mut version);
            }
            if event.kind != "BOOKMARK"
                && let Some(object) = read::<T>(event.object)
            {
                copy.send_modify(|known| note(known, object, event.kind == "DELETED"));
            }
            if copy.is_closed() {
                return Ok(());
            }
        }
    }
}

/// One object; `None`: it cannot be read. The others must not wait for it.
fn read<T: Object>(object: Value) -> Option<T> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    serde_json::from_value(object)
        .map_err(|error| warn!("{name:?} is left out, since it cannot be read: {error}"))
        .ok()
}

/// Notes a change of one object.
fn note<T: Object>(known: &mut Objects<T>, object: T, deleted: bool) {
    // All of them are copied only while a reader still has the copy before.
    let all = Arc::make_mut(known.get_or_insert_default());
    let uid = object.metadata().uid.clone();
    match deleted {
        true => all.remove(&uid),
        false => all.insert(uid, object),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_that_cannot_be_read_is_left_out() {
        let pod = |amount: &str| {
            let limits = json!({ "limits": { "cpu": amount } });
            let metadata = json!({ "name": "one", "uid": "1" });
            json!({ "metadata": metadata, "spec": { "containers": [{ "name": "c", "resources": limits }] } })
        };
        assert!(read::<Pod>(pod("100e-3")).is_some());
        assert!(read::<Pod>(pod("much")).is_none());
        assert!(read::<Pod>(json!([1])).is_none());
    }
}
