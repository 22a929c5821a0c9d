//! Size-limited reading of untrusted input.

use crate::error::Error;
use std::io::Read;

/// Size that fits nearly every document: one read, one allocation.
const USUAL_BYTES: usize = 16 << 10;

/// Reads at most `max` bytes; longer input is an error.
pub(crate) fn read_capped(from: impl Read, max: u64, what: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    let read = from.take(max + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::Input(format!("{what}: {error}")))?;
    if bytes.len() as u64 > max {
        return Err(Error::Input(format!("{what} is larger than {max} bytes")));
    }
    Ok(bytes)
}
