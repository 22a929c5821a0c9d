//! Damaged inputs: the hook neither panics nor takes a container that requests a slice for one that does
//! not, whatever an image, a user or a faulty disk changes.
//!
//! The inputs are a fuzzer's. A second parser (`serde_json::Value`, case-insensitive) reads each one's request too,
//! and the results are compared.

use crate::{Args, Ask, Config, Error, State};
use gpuslice_wire::admin::{MemoryAsk, RequestSource};
use gpuslice_wire::policy::Class;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

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
    let is_blank = |c: char| c == ' ' || c.is_ascii_control();
    let annotations = member(&value, "annotations").unwrap_or_default();
    let mut keys = annotations.as_object().into_iter().flat_map(|map| map.keys());
    let env = member(&value, "process").and_then(|process| member(&process, "env"));
    let env = env.unwrap_or_default();
    let mut env = env.as_array().into_iter().flatten().filter_map(Value::as_str);
    Some(
        keys.any(|key| {
            key.trim_start_matches(is_blank).to_ascii_lowercase().starts_with("gpuslice.io/")
        }) || env.any(|entry| {
            let names = [
                "ALIYUN_COM_GPU_MEM_CONTAINER=",
                "NVIDIA_GPU_MEMORY_LIMIT=",
                "NVIDIA_GPU_MEMORY_REQUEST=",
            ];
            names.iter().any(|name| entry.starts_with(name))
        }),
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
fn no_document_that_requests_a_slice_gets_none() {
    gpuslice_fuzz::fuzz!("container-config", |text| match ask(text) {
        Err(error) => readable(&error),
        Ok(None) => assert_ne!(asks(text), Some(true)),
        Ok(Some(ask)) => {
            match ask.memory {
                MemoryAsk::Exactly(bytes) => assert!(bytes.0 > 0),
                MemoryAsk::Ratio { part, whole } => assert!(0 < part && part <= whole),
            }
            assert!(ask.weight.is_none_or(|weight| (1..=1000).contains(&weight.get())));
            let (share, limit) = (ask.share, ask.share_limit);
            assert!(share.zip(limit).is_none_or(|(share, limit)| share <= limit));
            if matches!(ask.source, Some(RequestSource::Cgpu | RequestSource::Nvidia)) {
                let costly = (ask.weight, ask.class, ask.share, ask.share_limit, ask.pinned);
                assert_eq!(costly, (None, Class::Normal, None, None, None));
                assert!(ask.whole.is_empty());
            }
        }
    });
}

#[test]
fn any_bytes_are_a_state_or_an_error() {
    gpuslice_fuzz::fuzz!("container-state", |text| match State::parse(text) {
        Err(error) => readable(&error),
        Ok(state) => {
            assert!(state.bundle.starts_with('/'));
            assert!(state.host_pid().is_ok_and(|pid| pid > 1) || state.host_pid().is_err());
            let _ = state.stage_if(None).map_err(|error| readable(&error));
            match state.container_id() {
                Ok(id) => assert!(!id.as_str().contains('/') && !id.as_str().starts_with('.')),
                Err(error) => readable(&error),
            }
        }
    });
}

#[test]
fn any_words_are_arguments_or_an_error() {
    gpuslice_fuzz::fuzz!("hook-arguments", |text| {
        let words = text.split(|&b| b == b'\n');
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
