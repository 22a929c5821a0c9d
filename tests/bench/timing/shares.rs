//! Deviation of a tenant's GPU time from its due share, over one second and over ten.
//!
//! Every 0.1 s the bench reads each context's device time; windows of one second and of ten slide over
//! these samples. An error is a part of the *device's* time: 1 % is 10 ms of a second.

use crate::node::Node;
use crate::{Error, Pace, Row};
use gpuslice_sim_device::now_ns;
use std::path::Path;
use std::time::Duration;

/// Tenants and their due shares.
pub struct Case {
    /// Display name.
    pub name: &'static str,
    policy: &'static str,
    /// Arguments of `gpuslice run`, and the due share.
    tenants: &'static [(&'static str, f64)],
    /// Whether shares refer to the device's time; otherwise to the tenants' total.
    of_device: bool,
}

const EQUAL: (&str, f64) = ("", 1.0 / 16.0);

/// Defaults of a daemon without a configuration.
const DEFAULT: &str = "soft";

/// All cases.
pub const CASES: &[Case] = &[
    Case { name: "1:1", policy: "soft", tenants: &[("", 0.5), ("", 0.5)], of_device: false },
    Case {
        name: "1:3",
        policy: "soft",
        tenants: &[("", 0.25), ("--weight 3", 0.75)],
        of_device: false,
    },
    Case {
        name: "1:2:4:8",
        policy: "soft",
        tenants: &[
            ("", 1.0 / 15.0),
            ("--weight 2", 2.0 / 15.0),
            ("--weight 4", 4.0 / 15.0),
            ("--weight 8", 8.0 / 15.0),
        ],
        of_device: false,
    },
    Case { name: "16 equal", policy: "soft", tenants: &[EQUAL; 16], of_device: false },
    Case {
        name: "fixed 30/70",
        policy: "fixed",
        tenants: &[("--share 30", 0.3), ("--share 70", 0.7)],
        of_device: false,
    },
    Case {
        name: "share 20 beside weights 1:3",
        policy: "soft",
        tenants: &[("--share 20", 0.2), ("", 0.2), ("--weight 3", 0.6)],
        of_device: false,
    },
    Case {
        name: "share-limit 40 beside weight 1",
        policy: "soft",
        tenants: &[("--weight 3 --share 20 --share-limit 40", 0.4), ("", 0.6)],
        of_device: false,
    },
    Case {
        name: "preemptive, one of three idle",
        policy: "preemptive",
        tenants: &[("", 1.0 / 3.0), ("", 1.0 / 3.0), ("", 0.0)],
        of_device: true,
    },
];

/// Sampling interval.
const STEP: Duration = Duration::from_millis(100);

/// The two rows of a case.
pub fn measure(parts: &Path, case: &Case, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut node = Node::start(parts, 1)?;
    if case.policy != DEFAULT {
        node.gpuslice(&format!("policy all {}", case.policy))?;
    }
    let mut contexts = Vec::new();
    for (words, part) in case.tenants {
        let work = match *part {
            0.0 => "--seconds 600 --idle",
            _ => "--seconds 600 --kernel-us 500",
        };
        contexts.push(node.tenant(0, (words, work))?);
    }
    std::thread::sleep(Duration::from_secs(2));
    let length = pace.seconds(20.0);
    let mut looks = Vec::new();
    let start = now_ns();
    while now_ns() < start + length.as_nanos() as u64 {
        looks.push((now_ns(), node.busy(&contexts)));
        std::thread::sleep(STEP);
    }
    let long = (length.as_secs() / 2).max(1);
    let row = |seconds: u64, bound: f64| {
        let name = format!("{}, over {seconds} s", case.name);
        Row::of(&name, "% dev", errors(&looks, case, seconds), bound)
    };
    Ok(vec![row(1, 1.0), row(long, 0.2)])
}

/// The largest error of any tenant, in percent, for each window of `seconds`.
fn errors(looks: &[(u64, Vec<u64>)], case: &Case, seconds: u64) -> Vec<f64> {
    let mut errors = Vec::new();
    for (at, (from, before)) in looks.iter().enumerate() {
        let end = looks[at..].iter().find(|(now, _)| *now >= from + seconds * 1_000_000_000);
        let Some((to, after)) = end else { break };
        let got: Vec<u64> = after.iter().zip(before).map(|(now, then)| now - then).collect();
        let whole = match case.of_device {
            true => to - from,
            false => got.iter().sum(),
        };
        let error = |(got, due): (&u64, f64)| 100.0 * (*got as f64 / whole as f64 - due).abs();
        let dues = case.tenants.iter().map(|tenant| tenant.1);
        errors.push(got.iter().zip(dues).map(error).fold(0.0, f64::max));
    }
    errors
}
