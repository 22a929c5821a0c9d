//! Parsing of `config.json`: strict for the parts that the hook reads, tolerant for the rest.
//!
//! Runtimes in Go accept a key in any case (`Process` for `process`) and take the last of duplicates. Two
//! readers of one file must not disagree, so both are refused in the objects that the hook reads. All
//! other content may be anything the runtime tolerates: a container without a request must not fail
//! because of the hook.

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A string's bytes, whether or not they are UTF-8.
#[derive(Debug)]
pub(crate) struct Bytes(pub Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Text)
    }
}

/// An object of which some fields are read; it may borrow from the text.
pub(crate) trait Object<'de>: Default {
    /// Their names.
    const NAMES: &'static [&'static str];
    /// Reads the value of the field `NAMES[at]`.
    fn take<A: MapAccess<'de>>(&mut self, at: usize, map: &mut A) -> Result<(), A::Error>;
}

/// Reads an object.
pub(crate) fn object<'de, T: Object<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Fields<T>(PhantomData<T>);
    impl<'de, T: Object<'de>> Visitor<'de> for Fields<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an object with {}", T::NAMES.join(", "))
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
            let (mut all, mut seen) = (T::default(), 0u32);
            while let Some(Bytes(key)) = map.next_key()? {
                let Some(at) =
                    T::NAMES.iter().position(|name| folded(&key) == folded(name.as_bytes()))
                else {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                };
                let name = T::NAMES[at];
                if key != name.as_bytes() {
                    return Err(A::Error::custom(format!("{name:?} is written otherwise")));
                }
                if seen & 1 << at != 0 {
                    return Err(A::Error::custom(format!("{name:?} is given twice")));
                }
                seen |= 1 << at;
                all.take(at, &mut map)?;
            }
            Ok(all)
        }
    }
    deserializer.deserialize_map(Fields(PhantomData))
}

/// A key as Go compares it: case-insensitively, where two characters outside ASCII fold to ASCII
/// letters.
fn folded(key: &[u8]) -> String {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    String::from_utf8_lossy(key).chars().map(fold).collect()
}
