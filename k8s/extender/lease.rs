//! One extender of several binds: the one that holds a Lease.
//!
//! Two extenders that bind at the same time would each give the last GPU away. A Lease of the API server names the
//! holder, who renews it. Clocks of different machines are not compared: an extender measures on its own clock for
//! how long it has seen the same record, and takes the Lease when that is the record's duration. A holder believes in
//! its Lease from the moment before it asked for the renewal, and binds only in the first half of the duration. So the
//! calls of its last binding end before another extender can hold the Lease. A holder that is told to end gives its
//! Lease up when no binding goes on.

use crate::api::client::{Client, status};
use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::str::FromStr;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// How long a Lease holds without a renewal.
pub const DURATION: Duration = Duration::from_secs(30);
/// Time limit for the last binding and for giving the Lease up.
pub const GIVE_UP_LIMIT: Duration = Duration::from_secs(5);

/// Namespace and name of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    pub namespace: String,
    pub name: String,
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<LeaseName, String> {
        let plain = |part: &str| {
            let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            !part.is_empty() && part.chars().all(valid)
        };
        match text.split_once('/') {
            Some((namespace, name)) if plain(namespace) && plain(name) => {
                Ok(LeaseName { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("{text:?} is no lease; write NAMESPACE/NAME")),
        }
    }
}

/// The record, as far as it is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    pub holder_identity: Option<String>,
    pub lease_duration_seconds: Option<u64>,
    pub renew_time: Option<String>,
    pub acquire_time: Option<String>,
    pub lease_transitions: Option<u64>,
}

/// A record, and since when it has been this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub record: Record,
    pub since: Instant,
}

/// What an extender does about the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is none.
    Create,
    /// Its holder has given it up, or has not renewed it in time.
    Take,
    /// It is this extender's.
    Renew,
    /// It is another's.
    Wait,
}

/// The next step of the extender `me`.
#[must_use]
pub fn step(me: &str, seen: Option<&Seen>, now: Instant) -> Step {
    let Some(Seen { record, since }) = seen else {
        return Step::Create;
    };
    let holder = record.holder_identity.as_deref().unwrap_or_default();
    let duration = record.lease_duration_seconds.map_or(DURATION, Duration::from_secs);
    match holder {
        "" => Step::Take,
        holder if holder == me => Step::Renew,
        _ if now.duration_since(*since) >= duration => Step::Take,
        _ => Step::Wait,
    }
}

/// The time between two looks at a Lease of this duration.
fn pause(duration: Duration) -> Duration {
    duration / 15
}

/// Until when this extender may begin to bind; `None`: another one leads.
pub type Leading = watch::Receiver<Option<Instant>>;

/// Holds a Lease, or waits for it.
pub struct Elector {
    pub api: Client,
    pub lease: LeaseName,
    /// Different for each process.
    pub me: String,
    pub duration: Duration,
}

impl Elector {
    /// Renews or waits until the process ends.
    pub async fn run(&self, leading: &watch::Sender<Option<Instant>>) {
        let mut seen: Option<Seen> = None;
        let mut until = Instant::now();
        while !leading.is_closed() {
            let asked = Instant::now();
            match self.look(&mut seen).await {
                Ok(true) => {
                    until = asked + self.duration / 2;
                    if leading.send_replace(Some(until)).is_none() {
                        info!(me = self.me, "leading");
                    }
                }
                Ok(false) => drop(leading.send_replace(None)),
                Err(error) => {
                    warn!("the lease {}: {error:#}", self.lease.name);
                    // The server may answer again in time; the holder's own bound stays.
                    if Instant::now() >= until {
                        leading.send_replace(None);
                    }
                }
            }
            tokio::time::sleep(pause(self.duration)).await;
        }
    }

    /// Gives the Lease up if it is still this extender's, so that the next one takes it at once.
    ///
    /// # Errors
    /// The server does not answer, or refuses: the Lease ends with its duration.
    pub async fn give_up(&self) -> Result<()> {
        let mut lease: Value = self.api.get(&self.path()).await?;
        let holder = &mut lease["spec"]["holderIdentity"];
        if *holder == self.me.as_str() {
            *holder = json!("");
            self.api.replace(&self.path(), &lease).await?;
            info!(me = self.me, "leading no more");
        }
        Ok(())
    }

    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.lease.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.lease.name)
    }

    /// Reads the Lease and does the next step; true if it is held now.
    async fn look(&self, seen: &mut Option<Seen>) -> Result<bool> {
        let path = self.path();
        let found = match self.api.get::<Value>(&path).await {
            Err(error) if status(&error).is_some_and(|it| it.as_u16() == 404) => None,
            found => Some(found?),
        };
        let record = |object: &Value| -> Record {
            serde_json::from_value(object["spec"].clone()).unwrap_or_default()
        };
        let now = Instant::now();
        *seen = found.as_ref().map(record).map(|record| match seen.take() {
            Some(same) if same.record == record => same,
            _ => Seen { record, since: now },
        });
        let next = step(&self.me, seen.as_ref(), now);
        let written = match (next, found) {
            (Step::Wait, _) => return Ok(false),
            (Step::Create, _) => {
                self.api.create(&self.collection(), &self.object(next, None)).await
            }
            (_, old) => self.api.replace(&path, &self.object(next, old.as_ref())).await,
        };
        match written {
            Ok(kept) => {
                *seen = Some(Seen { record: record(&kept), since: now });
                ensure!(
                    kept["spec"]["holderIdentity"] == self.me.as_str(),
                    "the server kept another holder"
                );
                Ok(true)
            }
            // Another extender was faster.
            Err(error) if status(&error).is_some_and(|it| it.as_u16() == 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn object(&self, step: Step, old: Option<&Value>) -> Value {
        let now = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let mut object = old.cloned().unwrap_or_else(|| {
            json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": { "name": self.lease.name, "namespace": self.lease.namespace },
            })
        });
        let before = object["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
        let spec = &mut object["spec"];
        spec["holderIdentity"] = json!(self.me);
        spec["leaseDurationSeconds"] = json!(self.duration.as_secs().max(1));
        spec["renewTime"] = json!(now);
        if step != Step::Renew {
            spec["acquireTime"] = json!(now);
            spec["leaseTransitions"] = json!(before + u64::from(step == Step::Take));
        }
        object
    }
}

/// A name for this process: that of its pod, and a part that no process before it had.
#[must_use]
pub fn identity() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}_{}_{}", host.unwrap_or_default(), std::process::id(), now.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holder: &str, seconds: u64, since: Instant) -> Seen {
        let record = Record {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            ..Record::default()
        };
        Seen { record, since }
    }

    #[test]
    fn a_lease_is_taken_when_its_record_has_not_changed_for_its_duration() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let others = seen("b", 15, at(10));
        for (record, now, expected) in [
            (None, at(0), Step::Create),
            (Some(&others), at(24), Step::Wait),
            (Some(&others), at(25), Step::Take),
            (Some(&seen("a", 15, at(10))), at(99), Step::Renew),
            (Some(&seen("", 15, at(10))), at(10), Step::Take),
        ] {
            assert_eq!(step("a", record, now), expected);
        }
        assert_eq!(
            pause(DURATION),
            Duration::from_secs(2),
            "a Lease that is given up is seen then"
        );
        // A record that names no duration has ours.
        let mut odd = seen("b", 0, at(0));
        odd.record.lease_duration_seconds = None;
        assert_eq!(step("a", Some(&odd), at(29)), Step::Wait);
        assert_eq!(step("a", Some(&odd), at(30)), Step::Take);
    }

    #[test]
    fn names() {
        let name: LeaseName = "kube-system/gpuslice-extender".parse().expect("a lease");
        assert_eq!(
            (name.namespace.as_str(), name.name.as_str()),
            ("kube-system", "gpuslice-extender")
        );
        for bad in ["", "x", "/x", "x/", "a/b/c", "../x/y", "a/b c"] {
            assert!(bad.parse::<LeaseName>().is_err(), "{bad}");
        }
        assert_ne!(identity(), identity());
    }
}
