//! The grants file: a restarted daemon knows its processes' grants before any of them attaches.
//!
//! One file per container, with a place for each account that is written again and again:
//! ```text
//! | head: magic u64 | version u16 | accounts u16 | flags u32 | namespace u64 | CRC-32C u32 |
//! | place 0: copy 0, copy 1 | place 1: copy 0, copy 1 | ...
//! copy: number u64 | born u64 | pid u32 | granted u64 for each account | CRC-32C u32
//! ```
//! All little-endian; `accounts` are the slice's GPUs and, last, the host. The two copies of a place are
//! written in turn, each with a larger `number`: if the daemon is killed during a write, that copy is
//! incomplete and the other one holds. An increase is written before it is granted, a decrease some time
//! after it was given back; so the file never shows less than a process may have. A place of zeros was
//! never used; a place without a process is free.
//!
//! Pids are valid within one pid namespace, which the head names. The head also tells whether the file is
//! *complete*. A file that a daemon began anew because it could not read the one before is incomplete as
//! long as the container lives. If a file is missing, incomplete or damaged, the engine counts the claims
//! of processes that attach again, and growth waits for them for a while, as far as they are expected at
//! all.

use alloc::vec::Vec;
use core::fmt;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{ACCOUNTS_MAX, CLIENTS_PER_CONTAINER_MAX, LANES_MAX};
use gpuslice_wire::units::Bytes;

use crate::crc::crc32c;
use crate::event::Process;

/// First eight bytes of the file.
pub const GRANTS_MAGIC: [u8; 8] = *b"GSLGRNT1";
/// Version of the layout.
pub const GRANTS_VERSION: u16 = 1;
/// Bytes of the head.
pub const GRANTS_HEAD_BYTES: usize = 8 + 2 + 2 + 4 + 8 + 4;
/// Largest file size.
pub const GRANTS_BYTES_MAX: usize =
    GRANTS_HEAD_BYTES + CLIENTS_PER_CONTAINER_MAX * 2 * copy_bytes(LANES_MAX);
/// In the flags: no grant is missing.
const COMPLETE: u32 = 1;
/// Offset of the amounts in a copy.
const AMOUNTS_AT: usize = 8 + 8 + 4;

/// A process's grants, per lane.
pub type Granted = [Bytes; ACCOUNTS_MAX];

/// The head of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantsHead {
    /// GPUs of the slice.
    pub gpus: usize,
    /// No grant is missing.
    pub complete: bool,
    /// The pid namespace of the pids.
    pub namespace: u64,
}

/// One account, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its process; `None` is a process that cannot be named.
    pub process: Option<Process>,
    /// Its grants.
    pub granted: Granted,
}

/// Why bytes are not a grants file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantsError {
    /// No head, or too long (bytes given).
    Length(usize),
    /// Does not start with the magic.
    Magic,
    /// A version this build does not read (given).
    Version(u16),
    /// Neither copy of a place (its index) decodes, or the head does not.
    Damaged(Option<usize>),
    /// Written for another number of GPUs than the slice has.
    OtherSlice,
}

impl fmt::Display for GrantsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrantsError::Length(n) => write!(f, "{n} bytes are no record of what was granted"),
            GrantsError::Magic => f.write_str("not a record of what was granted"),
            GrantsError::Version(v) => {
                write!(f, "it is of version {v}, this build reads {GRANTS_VERSION}")
            }
            GrantsError::Damaged(None) => f.write_str("its head is damaged"),
            GrantsError::Damaged(Some(place)) => write!(f, "place {place} of it is damaged"),
            GrantsError::OtherSlice => f.write_str("it is of a slice of other GPUs"),
        }
    }
}

impl core::error::Error for GrantsError {}

/// Bytes of one copy of an account of a slice of `gpus` GPUs.
#[must_use]
pub const fn copy_bytes(gpus: usize) -> usize {
    AMOUNTS_AT + (gpus + 1) * 8 + 4
}

/// Offset of a copy in the file: the one that is written with this number.
#[must_use]
pub const fn copy_at(gpus: usize, place: usize, number: u64) -> usize {
    let copies = 2 * place + (number % 2) as usize;
    GRANTS_HEAD_BYTES + copies * copy_bytes(gpus)
}

fn lanes(gpus: usize) -> impl Iterator<Item = Lane> {
    (0..gpus.min(LANES_MAX) as u8).map(Lane).chain([Lane::HOST])
}

/// Appends the checksum.
fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32c(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

impl GrantsHead {
    /// The head's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(GRANTS_HEAD_BYTES);
        bytes.extend(GRANTS_MAGIC);
        bytes.extend(GRANTS_VERSION.to_le_bytes());
        bytes.extend((self.gpus as u16 + 1).to_le_bytes());
        bytes.extend(if self.complete { COMPLETE } else { 0 }.to_le_bytes());
        bytes.extend(self.namespace.to_le_bytes());
        summed(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<GrantsHead, GrantsError> {
        let head = bytes.get(..GRANTS_HEAD_BYTES);
        let head = head.ok_or(GrantsError::Length(bytes.len()))?;
        if head[..8] != GRANTS_MAGIC {
            return Err(GrantsError::Magic);
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != GRANTS_VERSION {
            return Err(GrantsError::Version(version));
        }
        let accounts = usize::from(u16::from_le_bytes([head[10], head[11]]));
        let flags = number(head, 12, 4);
        let found = GrantsHead {
            gpus: accounts.saturating_sub(1),
            complete: flags == u64::from(COMPLETE),
            namespace: number(head, 16, 8),
        };
        // One meaning, one encoding, and the checksum with it.
        let whole = found.gpus <= LANES_MAX && found.encode() == head;
        whole.then_some(found).ok_or(GrantsError::Damaged(None))
    }
}

/// A little-endian number of `len` bytes; zeros where there are none.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let part = bytes.get(at..at + len).unwrap_or(&[]);
    part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Grant {
    /// The bytes of a copy, for a slice of `gpus` GPUs; `None` is a free place.
    #[must_use]
    pub fn encode(grant: Option<&Grant>, gpus: usize, number: u64) -> Vec<u8> {
        let process = grant.and_then(|grant| grant.process);
        let mut bytes = Vec::with_capacity(copy_bytes(gpus));
        bytes.extend(number.to_le_bytes());
        bytes.extend(process.map_or(0, |process| process.born).to_le_bytes());
        bytes.extend(process.map_or(0, |process| process.pid).to_le_bytes());
        for lane in lanes(gpus) {
            let granted = grant.map(|grant| grant.granted[usize::from(lane.0)]);
            bytes.extend(granted.map_or(0, |bytes| bytes.0).to_le_bytes());
        }
        summed(bytes)
    }

    /// A copy's number and its grant: `None` for a free place.
    fn decode(copy: &[u8], gpus: usize) -> Option<(u64, Option<Grant>)> {
        let (body, sum) = copy.split_at_checked(copy_bytes(gpus) - 4)?;
        if sum != crc32c(body).to_le_bytes() {
            return None;
        }
        let mut granted = [Bytes::ZERO; ACCOUNTS_MAX];
        for (at, lane) in lanes(gpus).enumerate() {
            granted[usize::from(lane.0)] = Bytes(number(body, AMOUNTS_AT + at * 8, 8));
        }
        let process = Process { pid: number(body, 16, 4) as u32, born: number(body, 8, 8) };
        let nothing = granted.iter().all(|&bytes| bytes == Bytes::ZERO);
        let grant = Grant { process: (process.pid != 0).then_some(process), granted };
        Some((number(body, 0, 8), (!nothing).then_some(grant)))
    }
}

/// Reads a file of a slice of `gpus` GPUs. Total: any bytes give accounts or an error.
///
/// # Errors
/// [`GrantsError`].
pub fn read_grants(bytes: &[u8], gpus: usize) -> Result<(GrantsHead, Vec<Grant>), GrantsError> {
    if bytes.len() > GRANTS_BYTES_MAX {
        return Err(GrantsError::Length(bytes.len()));
    }
    let head = GrantsHead::decode(bytes)?;
    if head.gpus != gpus {
        return Err(GrantsError::OtherSlice);
    }
    let mut grants = Vec::new();
    let places = bytes[GRANTS_HEAD_BYTES..].chunks(2 * copy_bytes(gpus));
    for (at, place) in places.enumerate() {
        if place.iter().all(|&byte| byte == 0) {
            continue;
        }
        let copies = place.chunks(copy_bytes(gpus));
        let right = copies.filter_map(|copy| Grant::decode(copy, gpus));
        let last = right.max_by_key(|(number, _)| *number);
        let (_, grant) = last.ok_or(GrantsError::Damaged(Some(at)))?;
        grants.extend(grant);
    }
    Ok((head, grants))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn head(gpus: usize) -> GrantsHead {
        GrantsHead { gpus, complete: true, namespace: 4_026_531_836 }
    }

    fn grant(pid: u32, amounts: &[(Lane, u64)]) -> Grant {
        let mut granted = [Bytes::ZERO; ACCOUNTS_MAX];
        for (lane, bytes) in amounts {
            granted[usize::from(lane.0)] = Bytes(*bytes);
        }
        let process = (pid != 0).then_some(Process { pid, born: 77 });
        Grant { process, granted }
    }

    /// A file after these writes: (place, number, content).
    fn file(gpus: usize, written: &[(usize, u64, Option<Grant>)]) -> Vec<u8> {
        let mut bytes = head(gpus).encode();
        for (place, number, grant) in written {
            let at = copy_at(gpus, *place, *number);
            let copy = Grant::encode(grant.as_ref(), gpus, *number);
            bytes.resize(bytes.len().max(at + copy.len()), 0);
            bytes[at..at + copy.len()].copy_from_slice(&copy);
        }
        bytes
    }

    fn accounts(bytes: &[u8], gpus: usize) -> Result<Vec<Grant>, GrantsError> {
        read_grants(bytes, gpus).map(|(_, grants)| grants)
    }

    #[test]
    fn the_last_write_is_read() {
        let all = |gpus: usize| {
            let lanes: Vec<(Lane, u64)> = lanes(gpus).map(|lane| (lane, 5)).collect();
            grant(9, &lanes)
        };
        for gpus in 0..=LANES_MAX {
            let one = all(gpus);
            let bytes = file(
                gpus,
                &[
                    (0, 1, Some(grant(1, &[(Lane::HOST, 3)]))),
                    (1, 1, Some(grant(2, &[(Lane::HOST, 4)]))),
                    (0, 2, Some(one)),
                    (1, 2, None),
                    (3, 7, Some(grant(0, &[(Lane::HOST, 1)]))),
                ],
            );
            let expect = vec![one, grant(0, &[(Lane::HOST, 1)])];
            assert_eq!(read_grants(&bytes, gpus), Ok((head(gpus), expect)));
        }
        assert_eq!(accounts(&head(1).encode(), 1), Ok(vec![]));
        assert_eq!(accounts(&file(1, &[]), 2), Err(GrantsError::OtherSlice));
    }

    /// Killed at any byte of a write: the old content holds, or the new one.
    #[test]
    fn a_write_that_is_cut_off_at_any_byte_loses_nothing() {
        let (before, after) = (grant(1, &[(Lane(0), 100)]), grant(1, &[(Lane(0), 300)]));
        let old = file(1, &[(0, 1, Some(before)), (0, 2, Some(before))]);
        for number in [3, 4] {
            let copy = Grant::encode(Some(&after), 1, number);
            let at = copy_at(1, 0, number);
            for cut in 0..=copy.len() {
                let mut torn = old.clone();
                torn[at..at + cut].copy_from_slice(&copy[..cut]);
                let found = accounts(&torn, 1).expect("one copy is right");
                let whole = cut == copy.len();
                // an incomplete write may be whole by chance, where its bytes did not change
                let (least, most) = (vec![before], vec![after]);
                assert!(
                    found == if whole { most.clone() } else { least } || found == most,
                    "cut at {cut}: {found:?}"
                );
            }
        }
        let first = file(1, &[(0, 1, Some(after))]);
        for cut in GRANTS_HEAD_BYTES..first.len() {
            let found = accounts(&first[..cut], 1);
            let nothing = first[GRANTS_HEAD_BYTES..cut].iter().all(|byte| *byte == 0);
            match nothing {
                true => assert_eq!(found, Ok(vec![])),
                false => assert_eq!(found, Err(GrantsError::Damaged(Some(0))), "cut at {cut}"),
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_found_or_the_other_copy_holds() {
        let (one, two) = (grant(1, &[(Lane(0), 100)]), grant(1, &[(Lane(0), 300)]));
        let good = file(1, &[(0, 1, Some(one)), (0, 2, Some(two))]);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match accounts(&bad, 1) {
                Ok(found) => assert!(found == [one] || found == [two], "bit {bit}: {found:?}"),
                Err(_) => assert!(bit / 8 < GRANTS_HEAD_BYTES, "bit {bit}"),
            }
        }
    }

    #[test]
    fn foreign_files_are_refused() {
        let long = vec![0; GRANTS_BYTES_MAX + 1];
        assert!(matches!(accounts(&long, 1), Err(GrantsError::Length(_))));
        assert!(matches!(accounts(&[], 1), Err(GrantsError::Length(0))));
        let mut newer = head(1).encode();
        newer[8] = 2;
        assert_eq!(accounts(&newer, 1), Err(GrantsError::Version(2)));
        newer[0] = 0;
        assert_eq!(accounts(&newer, 1), Err(GrantsError::Magic));
    }

    /// Any bytes are accounts or an error, whatever their checksums say; accounts that are read are written and
    /// read again.
    #[test]
    fn any_bytes_are_accounts_or_an_error() {
        gpuslice_fuzz::fuzz!("grants", |bytes| {
            let Some((&first, places)) = bytes.split_first() else { return };
            let gpus = usize::from(first) % (LANES_MAX + 1);
            let _ = read_grants(bytes, gpus);
            let mut whole = head(gpus).encode();
            for copy in places.chunks(copy_bytes(gpus) - 4) {
                let mut copy = copy.to_vec();
                copy.resize(copy_bytes(gpus) - 4, 0);
                whole.extend(summed(copy));
            }
            let grants = accounts(&whole, gpus).expect("no checksum is wrong");
            let written: Vec<_> =
                grants.iter().enumerate().map(|(at, it)| (at, 1, Some(*it))).collect();
            assert_eq!(accounts(&file(gpus, &written), gpus), Ok(grants));
        });
    }
}
