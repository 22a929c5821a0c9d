//! Randomly mutated configuration files: each is rejected or edited. An edited file can be edited again,
//! is readable by its engine, and is restored to the byte.

use super::containerd::Containerd;
use super::docker::Docker;
use super::nvidia::Nvidia;
use super::part::{NAME, Part, Undone, tests::wish, undo};
use std::panic::{AssertUnwindSafe, catch_unwind};

const JSON: &str = r#"{
  "runtimes": {"crun": {"path": "/usr/bin/crun", "runtimeArgs": []}},
  "default-runtime": "crun", "mtu": 1.5e3, "x": [null, true, {"é": "\u00e9"}]
}
"#;
const TOML: &str = r#"version = 2 # x
imports = ["/a/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
containerd.default_runtime_name = 'runc'
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes]
runc = { runtime_type = "io.containerd.runc.v2", options = { SystemdCgroup = true } }
[nvidia-container-runtime]
runtimes = [ "runc",
  "crun" ] # y
[[x]]
"#;
/// Fragments to insert, besides parts of the text itself.
const SPICE: [&str; 16] = [
    "\"", "{", "}", "[", "]", ",", ":", "=", ".", "\n", "#", "//", "'", "null", "gpuslice",
    "\u{feff}",
];
const ROUNDS: usize = 1500;

/// Reproducible noise (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit.max(1)
    }

    fn place(&mut self, text: &str) -> usize {
        let mut at = self.below(text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    fn mutated(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for _ in 0..=self.below(3) {
            let (one, two) = (self.place(&text), self.place(&text));
            let (from, to) = (one.min(two), one.max(two).min(one.min(two) + 40));
            let to = (from..=to).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(from);
            match self.below(3) {
                0 => text.replace_range(from..to, ""),
                1 => text.insert_str(from, SPICE[self.below(SPICE.len())]),
                _ => {
                    let copy = text[from..to].to_owned();
                    let at = self.place(&text);
                    text.insert_str(at, &copy);
                }
            }
        }
        text
    }
}

#[test]
fn every_file_is_refused_or_edited_and_comes_back() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(0x5EED_u64);
    println!("SEED={seed}");
    let v2 = Containerd::of_version(2).expect("known");
    let parts: [(&str, &dyn Part, &str); 3] =
        [("docker", &Docker, JSON), ("containerd", &v2, TOML), ("nvidia", &Nvidia, TOML)];
    for (name, part, good) in parts {
        let (mut random, mut edited) = (Random(seed | 1), 0);
        for round in 0..ROUNDS {
            let text = random.mutated(good);
            let default = round % 2 == 0 && name != "nvidia";
            let said = format!("{name}, round {round}:\n{text}");
            let put = catch_unwind(AssertUnwindSafe(|| {
                let is_ours = part.find(&text).ok()?.is_some() || text.contains(NAME);
                part.put(&text, &wish(default)).ok().filter(|_| !is_ours)
            }));
            let Some(put) = put.unwrap_or_else(|_| panic!("{said}")) else {
                continue;
            };
            edited += 1;
            assert_eq!(part.put(&put, &wish(default)).expect(&said), put, "{said}");
            assert!(part.find(&put).expect(&said).is_some(), "{said}");
            let undone = undo(part, &put, Some(&text)).expect(&said);
            let exact = Undone { text: Some(text), exact: true };
            assert_eq!(undone, Some(exact), "{said}");
            part.take_out(&put, None).expect(&said);
        }
        assert!(edited > ROUNDS / 100, "{name}: only {edited} of {ROUNDS} were edited");
    }
}
