//! Fuzz targets, which stand in the tests of the crates whose parsers they run.
//!
//! # Problem
//! A parser of foreign bytes must be total, and examples by hand miss what its author did not think of. Random bytes
//! alone do not get past a first magic number; a fuzzer guided by coverage does, but needs hours and a build
//! of its own.
//!
//! # Idea
//! [`fuzz!`] makes a test of a closure. Under `cargo test` it runs the closure on each input of a corpus and on
//! seeded mutants of them, the same on every machine. `tests/fuzz/run` builds the same test with libFuzzer, and
//! keeps in the corpus what reached new code. A corpus is one text file, an input a line.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub use bolero;

use std::fs;
use std::path::Path;

/// Mutants of a corpus under `cargo test`.
const MUTANTS: usize = 4_000;
/// Inputs do not grow beyond this, bytes. The largest frame and the largest record are smaller.
const BYTES_MAX: usize = 4_096;

/// The body of a test: runs a closure, which takes `&[u8]` and panics on a defect, on the inputs of
/// `tests/fuzz/corpus/NAME.txt`, on mutants of them, and under `tests/fuzz/run` on libFuzzer's.
#[macro_export]
macro_rules! fuzz {
    ($name:literal, $target:expr) => {{
        fn a_target(target: impl Fn(&[u8])) -> impl Fn(&[u8]) {
            target
        }
        let target = a_target($target);
        $crate::replay($name, &target);
        $crate::bolero::check!().with_iterations(1).for_each(|input: &[u8]| target(input));
    }};
}

/// Runs `target` on a corpus and on mutants of it; under a fuzzer on nothing, which has its own.
///
/// # Panics
/// `target` does, or the corpus is missing, empty or malformed.
pub fn replay(name: &str, target: &impl Fn(&[u8])) {
    if cfg!(fuzzing) {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{name}.txt"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let corpus: Vec<Vec<u8>> = text.lines().map(unescape).collect();
    assert!(!corpus.is_empty(), "{path:?} has no input");
    for input in &corpus {
        run(target, input);
    }
    let mut random = Random(1);
    for _ in 0..MUTANTS {
        run(target, &mutant(&mut random, &corpus));
    }
}

/// Runs `target`; if it panics, prints the input as a line of a corpus.
fn run(target: &impl Fn(&[u8]), input: &[u8]) {
    struct Told<'a>(&'a [u8]);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input, as a line of a corpus: {}", self.0.escape_ascii());
            }
        }
    }
    let told = Told(input);
    target(input);
    drop(told);
}

/// The bytes of a line, in which [`u8::escape_ascii`] wrote the unprintable bytes.
fn unescape(line: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.bytes();
    while let Some(byte) = rest.next() {
        let plain = match byte {
            b'\\' => match rest.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'x') => {
                    let digits: Vec<u8> = rest.by_ref().take(2).collect();
                    let digits = String::from_utf8_lossy(&digits);
                    u8::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("\\x{digits}"))
                }
                Some(quoted @ (b'\\' | b'"' | b'\'')) => quoted,
                other => panic!("{other:?} after a backslash in {line}"),
            },
            byte => byte,
        };
        bytes.push(plain);
    }
    bytes
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
}

/// An input of the corpus after one to four changes.
fn mutant(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(16)).min(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.insert(at, random.next() as u8),
            3 => {
                let twice = bytes[at..end].to_vec();
                bytes.splice(at..at, twice);
            }
            4 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashSet;

    #[test]
    fn lines_are_the_escaped_bytes() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(unescape(&all.escape_ascii().to_string()), all);
        assert_eq!(unescape(""), b"");
    }

    #[test]
    fn mutants_differ_and_are_the_same_each_time() {
        let corpus = [b"weight = 3\n".to_vec(), Vec::new()];
        let some = || {
            let mut random = Random(1);
            (0..1_000).map(|_| mutant(&mut random, &corpus)).collect::<Vec<_>>()
        };
        let distinct: HashSet<Vec<u8>> = some().into_iter().collect();
        assert_eq!(some(), some());
        assert!(distinct.len() > 400, "{}", distinct.len());
    }

    #[test]
    fn a_target_runs_on_the_whole_corpus() {
        let seen = RefCell::new(0);
        replay("words", &|_: &[u8]| *seen.borrow_mut() += 1);
        assert!(seen.into_inner() > MUTANTS);
    }
}
