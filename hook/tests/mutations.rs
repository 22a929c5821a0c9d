//! Damaged inputs: the hook neither panics nor takes a container that requests a slice for one that does
//! not, whatever an image, a user or a faulty disk changes.
//!
//! A seeded generator mutates valid documents. A second parser (`serde_json::Value`, case-insensitive)
//! reads each mutant's request too, and the results are compared.

use gpuslice_hook::{Args, Ask, Config, Error, State};
use gpuslice_wire::admin::{MemoryAsk, RequestSource};
use gpuslice_wire::policy::Class;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

const ANNOTATED: &str = r#"{"ociVersion":"1.0.2","root":{"path":"rootfs","readonly":true},
 "process":{"terminal":false,"args":["/bin/true"],"env":["PATH=/bin","LANG=C"],"cwd":"/"},
 "mounts":[{"destination":"/proc","type":"proc","source":"proc","options":["ro"]}],
 "annotations":{"example.com/a":"b","gpuslice.io/memory":"4GiB","gpuslice.io/weight":"3",
 "gpuslice.io/gpus":"0,1","gpuslice.io/priority":"high","gpuslice.io/name":"web"},
 "linux":{"resources":{"cpu":{"shares":1024}},"seccomp":{"syscalls":[{"names":["a"]}]}}}"#;
const CGPU: &str = r#"{"process":{"env":["PATH=/bin","ALIYUN_COM_GPU_MEM_CONTAINER=4",
 "ALIYUN_COM_GPU_MEM_DEV=15","ALIYUN_COM_GPU_SCHD_WEIGHT=1","ALIYUN_COM_GPU_HIGH_PRIO=0",
 "ALIYUN_COM_GPU_VISIBLE_DEVICES=0,2","NVIDIA_VISIBLE_DEVICES=all","CGPU_DISABLE=0"]},
 "annotations":{"io.kubernetes.cri.container-type":"container"},"root":{"path":"/r"}}"#;
const STATE: &str = r#"{"ociVersion":"1.0.2","id":"web-1","status":"creating","pid":4711,
 "bundle":"/run/b","annotations":{"gpuslice.io/memory":"4GiB"}}"#;

/// Mutants of each document and seed. `MUTANTS` and `SEED` in the environment change number and seed. The
/// loop is not guided by coverage, which stable Rust does not support.
fn how_many() -> usize {
    number("MUTANTS").unwrap_or(20_000)
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// splitmix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// Pieces put in anywhere: ends of strings, odd characters, other JSON.
const PIECES: [&[u8]; 20] = [
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\"",
    b"\\",
    b"\\ud800",
    b"\\u0000",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b" ",
    b"\n",
    b"\xe2\x80\xae",
    b"1e999",
    b"-",
];
/// Put behind an opening brace: keys that stand twice, then or already.
const MEMBERS: [&[u8]; 12] = [
    br#""annotations":{},"#,
    br#""annotations":null,"#,
    br#""Annotations":{},"#,
    br#""annotations":{"gpuslice.io/memory":"1GiB"},"#,
    br#""gpuslice.io/memory":"1GiB","#,
    br#""gpuslice.io/memory":7,"#,
    br#""GPUSLICE.io/memory":"","#,
    br#""process":{"env":[]},"#,
    br#""process":null,"#,
    br#""env":["ALIYUN_COM_GPU_MEM_CONTAINER=1"],"#,
    br#""root":{"path":"../.."},"#,
    br#""id":"..","pid":-1,"#,
];
/// Put in place of a run of digits.
const NUMBERS: [&[u8]; 9] = [
    b"0",
    b"-1",
    b"1e30",
    b"1e999",
    b"0x10",
    b"18446744073709551616",
    b"1.5",
    b"007",
    b"99999999999999999999999999999999999999999999999999999999999999999999999999999999",
];

fn mutate(text: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(text.len());
    match random.below(8) {
        0 | 1 => {
            if let Some(byte) = text.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => text.truncate(at),
        3 => drop(text.splice(at..at, random.one(&PIECES).iter().copied())),
        4 => {
            let braces: Vec<usize> = places(text, |b| b == b'{');
            if let Some(&brace) = braces.get(random.below(braces.len())) {
                let member = random.one(&MEMBERS).iter().copied();
                drop(text.splice(brace + 1..=brace, member));
            }
        }
        5 => {
            let digits = places(text, |b| b.is_ascii_digit());
            if let Some(&from) = digits.get(random.below(digits.len())) {
                let run = text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
                drop(text.splice(from..from + run, random.one(&NUMBERS).iter().copied()));
            }
        }
        6 => {
            let end = text.len().min(at + random.below(40));
            drop(text.drain(at..end));
        }
        _ => {
            let end = text.len().min(at + random.below(40));
            let (copy, to) = (text[at..end].to_vec(), random.below(text.len()));
            drop(text.splice(to..to, copy));
        }
    }
}

fn places(text: &[u8], is: impl Fn(u8) -> bool) -> Vec<usize> {
    let all = text.iter().enumerate();
    all.filter(|&(_, &b)| is(b)).map(|(at, _)| at).collect()
}

/// Mutants of a document, each with one to four changes.
fn mutants(text: &str, seed: u64, mut see: impl FnMut(&[u8])) {
    let seed = seed + number("SEED").unwrap_or(0) as u64;
    eprintln!("seed {seed}");
    let mut random = Random(seed);
    see(text.as_bytes());
    for _ in 0..how_many() {
        let mut mutant = text.as_bytes().to_vec();
        for _ in 0..=random.below(4) {
            mutate(&mut mutant, &mut random);
        }
        see(&mutant);
    }
}

/// The second parser: whether the document has a request, `None` if it is unreadable.
fn asks(text: &[u8]) -> Option<bool> {
    let text: String = String::from_utf8_lossy(text)
        .chars()
        .map(|c| if c.is_ascii_control() { ' ' } else { c })
        .collect();
    let value: Value = serde_json::from_str(&text).ok()?;
    let member = |of: &Value, name: &str| {
        let mut members = of.as_object()?.iter();
        let found = members.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    };
    let annotations = member(&value, "annotations").unwrap_or_default();
    let mut keys = annotations.as_object().into_iter().flat_map(|map| map.keys());
    let env = member(&value, "process").and_then(|process| member(&process, "env"));
    let env = env.unwrap_or_default();
    let mut env = env.as_array().into_iter().flatten().filter_map(Value::as_str);
    Some(
        keys.any(|key| key.trim().to_ascii_lowercase().starts_with("gpuslice.io/"))
            || env.any(|entry| entry.starts_with("ALIYUN_COM_GPU_MEM_CONTAINER=")),
    )
}

fn readable(error: &Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 8_000, "{} bytes", text.len());
    assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
}

fn ask(text: &[u8]) -> Result<Option<Ask>, Error> {
    Config::parse(text).and_then(|config| {
        assert!(config.rootfs("/b").is_absolute());
        Ask::of(&config, false)
    })
}

#[test]
fn no_mutant_of_a_wish_asks_for_nothing() {
    let (mut refused, mut granted, mut nothing) = (0, 0, 0);
    for (text, seed) in [(ANNOTATED, 1), (ANNOTATED, 2), (CGPU, 3), (CGPU, 4)] {
        mutants(text, seed, |mutant| match ask(mutant) {
            Err(error) => {
                refused += 1;
                readable(&error);
            }
            Ok(None) => {
                nothing += 1;
                let shown = String::from_utf8_lossy(mutant);
                assert_ne!(asks(mutant), Some(true), "seed {seed}: {shown}");
            }
            Ok(Some(ask)) => {
                granted += 1;
                match ask.memory {
                    MemoryAsk::Exactly(bytes) => assert!(bytes.0 > 0),
                    MemoryAsk::Ratio { part, whole } => assert!(0 < part && part <= whole),
                }
                assert!(ask.weight.is_none_or(|weight| (1..=1000).contains(&weight.get())));
                let (share, limit) = (ask.share, ask.share_limit);
                assert!(share.zip(limit).is_none_or(|(share, limit)| share <= limit));
                if ask.source == Some(RequestSource::Cgpu) {
                    let costly = (ask.weight, ask.class, ask.share, ask.share_limit, ask.pinned);
                    assert_eq!(costly, (None, Class::Normal, None, None, None));
                    assert!(ask.whole.is_empty());
                }
            }
        });
    }
    // Mutations that break every document, or none, would prove little.
    assert!(refused > 1_000 && granted > 1_000 && nothing > 100, "{refused} {granted} {nothing}");
}

#[test]
fn states_survive_mutation() {
    let mut good = 0;
    mutants(STATE, 5, |mutant| match State::parse(mutant) {
        Err(error) => readable(&error),
        Ok(state) => {
            good += 1;
            assert!(state.bundle.starts_with('/'));
            assert!(state.host_pid().is_ok_and(|pid| pid > 1) || state.host_pid().is_err());
            let _ = state.stage_if(None).map_err(|error| readable(&error));
            match state.container_id() {
                Ok(id) => assert!(!id.as_str().contains('/') && !id.as_str().starts_with('.')),
                Err(error) => readable(&error),
            }
        }
    });
    assert!(good > 100, "{good}");
}

#[test]
fn command_lines_survive_mutation() {
    let line = "--runtime-dir\n/run/gpuslice\n--allow-cgpu-disable\ncreateRuntime";
    mutants(line, 6, |mutant| {
        let words = mutant.split(|&b| b == b'\n');
        match Args::parse(words.map(|word| OsString::from_vec(word.to_vec()))) {
            Ok(args) => assert!(args.runtime_dir.as_os_str().as_bytes().starts_with(b"/")),
            Err(error) => readable(&error),
        }
    });
}

/// Sizes beyond any valid document: too deep, too long, too many.
#[test]
fn extremes() {
    let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
    let long = "x".repeat(2 << 20);
    let many = r#""a":"b","#.repeat(100_000);
    let wish = r#""gpuslice.io/memory":"1GiB""#;
    for refused in [
        format!(r#"{{"annotations":{}}}"#, deep(100_000)),
        deep(1 << 20),
        format!(r#"{{"annotations":{{"gpuslice.io/memory":"{long}"}}}}"#),
        format!(r#"{{"annotations":{{"gpuslice.io/{long}":"1GiB"}}}}"#),
        format!(r#"{{"annotations":{{{wish},"gpuslice.io/name":"{long}"}}}}"#),
        format!(r#"{{"process":{{"env":["ALIYUN_COM_GPU_MEM_CONTAINER={long}"]}}}}"#),
    ] {
        readable(&ask(refused.as_bytes()).expect_err("not a wish"));
    }
    // Foreign content is skipped, at any size.
    for asks in [
        format!(r#"{{"annotations":{{{wish}}},"x":{}}}"#, deep(100_000)),
        format!(r#"{{"x":"{long}","annotations":{{{many}{wish}}}}}"#),
    ] {
        assert!(ask(asks.as_bytes()).is_ok_and(|ask| ask.is_some()));
    }
    assert!(State::read(std::io::repeat(b'{')).is_err());
    assert!(State::parse(deep(100_000).as_bytes()).is_err());
}

/// Ambiguous or malformed content is refused in the parts that the hook reads.
#[test]
fn hostile_documents() {
    let wish = r#"{"annotations":{"gpuslice.io/memory":"1GiB"}}"#;
    let refused = [
        format!("\u{feff}{wish}"),
        format!("{wish}{wish}"),
        format!("{wish},"),
        format!("{wish}\0"),
        wish[..wish.len() - 1].to_owned(),
        format!("[{wish}]"),
        wish.replace("1GiB", "1GiB\n\t"),
        wish.replace("1GiB", "1GiB\0"),
        wish.replace("1GiB", r"1\ud800GiB"),
        wish.replace("\"1GiB\"", "1e999"),
        wish.replace("\"1GiB\"", "18446744073709551616"),
        wish.replace("\"1GiB\"", "-0"),
        wish.replace("\"1GiB\"", "NaN"),
        wish.replace("\"1GiB\"", "[\"1GiB\"]"),
        wish.replace("\"1GiB\"", "null"),
        wish.replace("1GiB", "0x40000000"),
        wish.replace("1GiB", "1_073_741_824"),
        wish.replace("1GiB", "\u{661}GiB"),
    ];
    for text in &refused {
        readable(&ask(text.as_bytes()).expect_err(text));
    }
    assert!(ask(wish.as_bytes()).is_ok_and(|ask| ask.is_some()));
    for text in [
        r#"{"id":"c","bundle":"/b","pid":1e3}"#,
        r#"{"id":"c","bundle":"/b","pid":"7"}"#,
        r#"{"id":"c","bundle":"/b","pid":9223372036854775808}"#,
        r#"{"id":"c","bundle":"/b","pid":7,"pid":8}"#,
        r#"{"id":null,"bundle":"/b"}"#,
        r#"{"id":"c","bundle":["/b"]}"#,
    ] {
        readable(&State::parse(text.as_bytes()).expect_err(text));
    }
}

/// Files larger than any runtime writes are not read.
#[test]
fn sizes_have_an_end() {
    let dir = std::env::temp_dir().join(format!("gpuslice-hook-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = |bytes: usize| format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes));
    std::fs::write(dir.join("config.json"), file(16 << 20)).expect("written");
    assert!(Config::read(&dir).is_ok(), "it asks for nothing");
    let long = file(64 << 20);
    std::fs::write(dir.join("config.json"), long).expect("written");
    let error = Config::read(&dir).expect_err("too large").to_string();
    std::fs::remove_dir_all(&dir).expect("ours");
    assert!(error.contains("larger than 67108864 bytes"), "{error}");
    let long = format!(r#"{{"id":"c","bundle":"/b","x":"{}"}}"#, "x".repeat(1 << 20));
    assert!(State::read(long.as_bytes()).is_err());
}
