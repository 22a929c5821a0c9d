//! `/etc/docker/daemon.json`: JSON as dockerd reads it, edited without touching foreign content.
//!
//! dockerd rejects comments; of a duplicate key it takes the last, while people read the first. Both are
//! rejected here. An edit keeps every other byte: the order of keys, the indentation, the notation of
//! numbers.

use anyhow::{Context, Result, anyhow, bail};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::CstRootNode;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;

/// A document that can be edited.
///
/// # Errors
/// It is not JSON, or a key is duplicate; with line and column.
pub fn parse(text: &str) -> Result<CstRootNode> {
    // dockerd treats an empty file as an empty object.
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    if let Err(error) = serde_json::from_str::<Strict>(text) {
        let line = text.lines().nth(error.line().saturating_sub(1));
        let rest = line.and_then(|line| line.get(error.column().saturating_sub(1)..));
        if rest.is_some_and(|rest| rest.starts_with(['/', '#'])) {
            bail!("{error}: there are no comments in JSON, and dockerd rejects them")
        }
        return Err(anyhow!(error));
    }
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        ..ParseOptions::default()
    };
    CstRootNode::parse(text, &strict).context("reading it as JSON")
}

/// Any JSON in which no object has a key twice.
struct Strict;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_str<E>(self, _: &str) -> Result<Strict, E> {
        Ok(Strict)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Strict, A::Error> {
        while all.next_element::<Strict>()?.is_some() {}
        Ok(Strict)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("{key:?} is given twice")));
            }
            map.next_value::<Strict>()?;
        }
        Ok(Strict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_everybody_reads_alike() {
        for good in ["", "\n", "{}", "{\"a\": [1e3, -0.5, null, true, \"x\"]}", "{ }\n\n"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("{\n  \"a\": 1,\n  \"a\": 2\n}", "\"a\" is given twice at line 3"),
            ("{\"x\": {\"a\": 1, \"a\": 2}}", "is given twice"),
            ("{\n  // why\n  \"a\": 1\n}", "no comments in JSON"),
            ("{\"a\": 1} # x", "no comments in JSON"),
            ("{\"a\": 1,}", "line 1 column 9"),
            ("{'a': 1}", "line 1 column 2"),
            ("{\"a\": 01}", "line 1 column"),
            ("{\"a\"", "line 1 column 4"),
            ("{} {}", "line 1 column 4"),
        ] {
            let said = format!("{:#}", parse(bad).expect_err("refused"));
            assert!(said.contains(why), "{bad}: {said}");
        }
        let deep = "[".repeat(1000);
        assert!(parse(&deep).is_err());
    }
}
