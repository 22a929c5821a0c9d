//! The record of a slice's promise, which outlives the daemon.
//!
//! One record per slice, of one size for each version:
//! ```text
//! 0          8           10             ...                      | size - 4
//! | magic u64 | version u16 | slice, little-endian, zero-padded  | CRC-32C of all before |
//! ```
//! Version 3 has a memory limit for each GPU before the checksum, and is written only where one is above its cap, or
//! was: an earlier build reads all other records. Version 2 has the limit of a share in the upper half of the share's
//! number, and may lack a weight. In version 1 a share was also its limit, and no weight counted beside it; such a
//! record keeps that meaning.
//!
//! Grants are not in it: they change all the time and have a file of their own (`grants.rs`). A record that
//! does not decode is set aside and reported, and its container's processes are refused: no slice is better
//! than a wrong one.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::limits::{CONTAINER_ID_BYTES_MAX, LANES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::text::{CgroupPath, Name, Text};
use gpuslice_wire::units::{Bytes, Percent, Weight};

use crate::crc::crc32c;
use crate::sched::policy::Entitlement;

/// First eight bytes of a record.
pub const RECORD_MAGIC: [u8; 8] = *b"GSLRECD1";
/// Version of the layout.
pub const RECORD_VERSION: u16 = 3;
/// Oldest version that this build reads.
pub const RECORD_VERSION_MIN: u16 = 1;
/// Bytes of the largest record.
pub const RECORD_BYTES: usize = SHORT_BYTES + LANES_MAX * 8;
/// Bytes of a record without memory limits, of versions 1 and 2.
const SHORT_BYTES: usize = 8
    + 2
    + (2 + CONTAINER_ID_BYTES_MAX)
    + (2 + NAME_BYTES_MAX)
    + (4 + 4 + 1 + 1)
    + LANES_MAX * LANE_BYTES
    + 8
    + (2 + PATH_BYTES_MAX)
    + 4;
const LANE_BYTES: usize = 16 + 8;
const LANES_END: usize = SHORT_BYTES - 4 - (2 + PATH_BYTES_MAX) - 8;

/// One GPU of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRecord {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Memory cap on it.
    pub cap: Bytes,
    /// How far it may grow into what others leave unused; mostly the cap, and never below it.
    pub limit: Bytes,
    /// Its limit is above its cap, or was: what it holds beyond the cap is borrowed.
    pub elastic: bool,
    /// The container has the whole GPU: no other container gets a slice of it, and no policy caps its time.
    pub whole: bool,
}

/// In a record's cap: the container has the whole GPU. No GPU has that much memory.
const WHOLE_BIT: u64 = 1 << 63;
/// In a record's limit that is the cap: it was above the cap before.
const ELASTIC_BIT: u64 = 1 << 63;
/// In a record's class: its GPUs never take turns together.
const NEVER_BIT: u8 = 1 << 7;

/// A promised slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The container.
    pub container: ContainerId,
    /// For people; never empty.
    pub name: Name,
    /// Weight for the time that shares leave, if it was named.
    pub weight: Option<Weight>,
    /// Share of each GPU's time, if any.
    pub share: Option<Percent>,
    /// The most that it gets of each GPU's time, if limited; not below the share.
    pub share_limit: Option<Percent>,
    /// Scheduling priority.
    pub class: Class,
    /// Whether its GPUs may take turns together.
    pub gang: Gangs,
    /// Lane 0 first; 1 to 16 of them, no GPU twice.
    pub lanes: Vec<LaneRecord>,
    /// Cap on the host memory it pins, if any; never zero.
    pub pinned: Option<Bytes>,
    /// Directory under the cgroup mount whose processes are the container's; empty if not known.
    pub cgroup: CgroupPath,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// Not as long as a record of its version (given).
    Length(usize),
    /// Does not start with the magic.
    Magic,
    /// A version this build does not read (given).
    Version(u16),
    /// The checksum is not that of the bytes: torn or damaged.
    Checksum,
    /// A field holds a value outside its type.
    Field,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Length(n) => {
                write!(
                    f,
                    "a slice's record is {SHORT_BYTES} or {RECORD_BYTES} bytes, this one is {n}"
                )
            }
            RecordError::Magic => f.write_str("not a slice's record"),
            RecordError::Version(v) => write!(
                f,
                "the record is of version {v}, this build reads {RECORD_VERSION}; start the \
                 gpusliced that wrote it, or delete the record and start the container again"
            ),
            RecordError::Checksum => f.write_str(
                "the record is damaged: its checksum is wrong; delete it and start the \
                 container again",
            ),
            RecordError::Field => f.write_str("a field of the record holds an impossible value"),
        }
    }
}

impl core::error::Error for RecordError {}

impl Record {
    /// The weight for the time that shares leave: 1 if none was named, or none beside a share.
    #[must_use]
    pub fn shown_weight(&self) -> Option<Weight> {
        self.weight.or(self.share.is_none().then_some(Weight::ONE))
    }

    /// The slice's entitlement to a GPU's time.
    pub(crate) fn entitlement(&self, lane: usize) -> Entitlement {
        Entitlement {
            weight: self.weight,
            share: self.share,
            limit: self.share_limit,
            class: self.class,
            whole: self.lanes.get(lane).is_some_and(|lane| lane.whole),
            alone: self.lanes.len() == 1,
        }
    }

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let is_elastic = self.lanes.iter().any(|lane| lane.elastic);
        self.encode_as(if is_elastic { RECORD_VERSION } else { 2 })
    }

    fn encode_as(&self, version: u16) -> Vec<u8> {
        let mut out = Out { bytes: vec![0; bytes_of(version)], at: 0 };
        out.put(&RECORD_MAGIC);
        out.put(&version.to_le_bytes());
        out.text::<CONTAINER_ID_BYTES_MAX>(self.container.as_str());
        out.text::<NAME_BYTES_MAX>(self.name.as_str());
        let number = |percent: Option<Percent>| percent.map_or(0, Percent::get);
        let (weight, limit) = match version {
            1 => (self.weight.unwrap_or(Weight::ONE).get(), 0),
            _ => (self.weight.map_or(0, Weight::get), number(self.share_limit)),
        };
        out.put(&weight.to_le_bytes());
        out.put(&(number(self.share) | limit << 16).to_le_bytes());
        let never = if self.gang == Gangs::Never { NEVER_BIT } else { 0 };
        let class = self.class.number() | never;
        out.put(&[class, self.lanes.len().min(LANES_MAX) as u8]);
        for lane in self.lanes.iter().take(LANES_MAX) {
            out.put(&lane.gpu.0);
            let flag = if lane.whole { WHOLE_BIT } else { 0 };
            out.put(&(lane.cap.0 | flag).to_le_bytes());
        }
        out.at = LANES_END;
        out.put(&self.pinned.map_or(0, |cap| cap.0).to_le_bytes());
        out.field::<PATH_BYTES_MAX>(self.cgroup.as_bytes());
        if version > 2 {
            let limits = self.lanes.iter().take(LANES_MAX);
            limits.for_each(|lane| {
                let was = lane.elastic && lane.limit == lane.cap;
                out.put(&(lane.limit.0 | if was { ELASTIC_BIT } else { 0 }).to_le_bytes());
            });
            out.at = bytes_of(version) - 4;
        }
        let sum = crc32c(&out.bytes[..out.at]);
        out.put(&sum.to_le_bytes());
        out.bytes
    }

    /// Reads a record. Total: any bytes of the present version give a record that [`Record::encode`] gives
    /// back as these very bytes, or an error.
    ///
    /// # Errors
    /// [`RecordError`], the first that holds in the order of its variants.
    pub fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        let whole = bytes;
        if ![SHORT_BYTES, RECORD_BYTES].contains(&whole.len()) {
            return Err(RecordError::Length(whole.len()));
        }
        let mut input = In(whole);
        if input.array::<8>()? != RECORD_MAGIC {
            return Err(RecordError::Magic);
        }
        let version = u16::from_le_bytes(input.array()?);
        if !(RECORD_VERSION_MIN..=RECORD_VERSION).contains(&version) {
            return Err(RecordError::Version(version));
        }
        if whole.len() != bytes_of(version) {
            return Err(RecordError::Length(whole.len()));
        }
        let (body, sum) = whole.split_at(whole.len() - 4);
        if sum != crc32c(body).to_le_bytes() {
            return Err(RecordError::Checksum);
        }
        let record = input.slice(version)?;
        // One meaning, one encoding: this refuses padding or lanes that would be lost.
        if record.encode_as(version) == whole { Ok(record) } else { Err(RecordError::Field) }
    }
}

/// Bytes of a record of this version.
const fn bytes_of(version: u16) -> usize {
    if version > 2 { RECORD_BYTES } else { SHORT_BYTES }
}

struct Out {
    bytes: Vec<u8>,
    at: usize,
}

impl Out {
    fn put(&mut self, part: &[u8]) {
        self.bytes[self.at..self.at + part.len()].copy_from_slice(part);
        self.at += part.len();
    }
    fn text<const N: usize>(&mut self, text: &str) {
        self.field::<N>(text.as_bytes());
    }
    fn field<const N: usize>(&mut self, bytes: &[u8]) {
        self.put(&(bytes.len() as u16).to_le_bytes());
        let end = self.at + N;
        self.put(bytes);
        self.at = end;
    }
}

/// Weight, share and limit.
type TimeSettings = (Option<Weight>, Option<Percent>, Option<Percent>);

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], RecordError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(RecordError::Field)?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        self.take(N)?.try_into().map_err(|_| RecordError::Field)
    }
    fn field<const N: usize>(&mut self) -> Result<&'a [u8], RecordError> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        self.take(N)?.get(..len).ok_or(RecordError::Field)
    }
    fn text<const N: usize>(&mut self) -> Result<Text<N>, RecordError> {
        let field = self.field::<N>()?;
        let text = core::str::from_utf8(field).map_err(|_| RecordError::Field)?;
        Text::new(text).map_err(|_| RecordError::Field)
    }
    fn percent(&mut self) -> Result<Option<Percent>, RecordError> {
        match u16::from_le_bytes(self.array()?) {
            0 => Ok(None),
            percent => Percent::new(percent.into()).map(Some).map_err(|_| RecordError::Field),
        }
    }
    /// Weight, share and limit.
    fn entitlement(&mut self, version: u16) -> Result<TimeSettings, RecordError> {
        let weight = match u32::from_le_bytes(self.array()?) {
            0 if version > 1 => None,
            weight => Some(Weight::new(weight).map_err(|_| RecordError::Field)?),
        };
        let (share, limit) = (self.percent()?, self.percent()?);
        match (version, share, limit) {
            (1, Some(_), None) => Ok((weight.filter(|it| *it > Weight::ONE), share, share)),
            (1, _, Some(_)) => Err(RecordError::Field),
            (_, Some(share), Some(limit)) if limit < share => Err(RecordError::Field),
            _ => Ok((weight, share, limit)),
        }
    }
    /// The memory limits; one of them is above its cap, or was.
    fn limits(&mut self, lanes: &mut [LaneRecord]) -> Result<(), RecordError> {
        for lane in lanes.iter_mut() {
            let limit = u64::from_le_bytes(self.array()?);
            lane.limit = Bytes(limit & !ELASTIC_BIT);
            lane.elastic = lane.limit > lane.cap || limit & ELASTIC_BIT != 0;
            if lane.limit < lane.cap || lane.whole && lane.elastic {
                return Err(RecordError::Field);
            }
        }
        match lanes.iter().any(|lane| lane.elastic) {
            true => Ok(()),
            false => Err(RecordError::Field),
        }
    }
    fn slice(&mut self, version: u16) -> Result<Record, RecordError> {
        let id = self.text::<CONTAINER_ID_BYTES_MAX>()?;
        let container = ContainerId::new(id.as_str()).map_err(|_| RecordError::Field)?;
        let name = self.text::<NAME_BYTES_MAX>()?;
        let (weight, share, share_limit) = self.entitlement(version)?;
        let [class, count] = self.array()?;
        let mut lanes: Vec<LaneRecord> = Vec::new();
        for _ in 0..count {
            let gpu = GpuUuid(self.array()?);
            let cap = u64::from_le_bytes(self.array()?);
            let (cap, whole) = (Bytes(cap & !WHOLE_BIT), cap & WHOLE_BIT != 0);
            if cap == Bytes::ZERO || lanes.iter().any(|lane| lane.gpu == gpu) {
                return Err(RecordError::Field);
            }
            lanes.push(LaneRecord { gpu, cap, limit: cap, elastic: false, whole });
        }
        self.take((LANES_MAX - lanes.len().min(LANES_MAX)) * LANE_BYTES)?;
        let pinned = match u64::from_le_bytes(self.array()?) {
            0 => None,
            cap => Some(Bytes(cap)),
        };
        let cgroup = match self.field::<PATH_BYTES_MAX>()? {
            [] => CgroupPath::EMPTY,
            path => CgroupPath::new(path).map_err(|_| RecordError::Field)?,
        };
        if version > 2 {
            self.limits(&mut lanes)?;
        }
        if lanes.is_empty() || lanes.len() > LANES_MAX {
            return Err(RecordError::Field);
        }
        let gang = match class & NEVER_BIT {
            0 => Gangs::Auto,
            _ => Gangs::Never,
        };
        let class = Class::of(class & !NEVER_BIT).ok_or(RecordError::Field)?;
        Ok(Record {
            container,
            name,
            weight,
            share,
            share_limit,
            class,
            gang,
            lanes,
            pinned,
            cgroup,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(lanes: u8) -> Record {
        Record {
            container: ContainerId::new("web-1").expect("an id"),
            name: Name::new("web").expect("a name"),
            weight: Weight::new(7).ok(),
            share: Percent::new(25).ok(),
            share_limit: Percent::new(50).ok(),
            class: Class::High,
            gang: Gangs::ALL[usize::from(lanes % 2)],
            lanes: (0..lanes)
                .map(|n| LaneRecord {
                    gpu: GpuUuid([n; 16]),
                    cap: Bytes(u64::from(n) + 1),
                    limit: Bytes(u64::from(n) + 1),
                    elastic: false,
                    whole: n % 2 == 1,
                })
                .collect(),
            pinned: Some(Bytes(77)),
            cgroup: CgroupPath::new(b"/system.slice/w\xffb").expect("a path"),
        }
    }

    #[test]
    fn records_round_trip() {
        for lanes in 1..=LANES_MAX as u8 {
            let mut it = record(lanes);
            let bytes = it.encode();
            assert_eq!((bytes.len(), bytes[8]), (SHORT_BYTES, 2), "an earlier build reads it");
            assert_eq!(Record::decode(&bytes).as_ref(), Ok(&it));
            (it.lanes[0].limit, it.lanes[0].elastic) = (Bytes(99), true);
            let bytes = it.encode();
            assert_eq!((bytes.len(), bytes[8]), (RECORD_BYTES, 3));
            assert_eq!(Record::decode(&bytes).as_ref(), Ok(&it));
            it.lanes[0].cap = Bytes(100);
            assert_eq!(Record::decode(&it.encode()), Err(RecordError::Field), "below the cap");
            it.lanes[0].cap = it.lanes[0].limit;
            let bytes = it.encode();
            assert_eq!(bytes[8], 3, "the limit was lowered to the cap");
            assert_eq!(Record::decode(&bytes).as_ref(), Ok(&it));
        }
        let (short, mut whole) = (record(2).encode_as(3), record(2));
        assert_eq!(Record::decode(&short), Err(RecordError::Field), "no limit above its cap");
        (whole.lanes[1].limit, whole.lanes[1].elastic) = (Bytes(99), true);
        assert_eq!(Record::decode(&whole.encode()), Err(RecordError::Field), "of a whole GPU");
    }

    /// A record that an earlier version wrote: its share was also its limit.
    #[test]
    fn a_record_without_a_limit_keeps_its_meaning() {
        let (seven, quarter) = (Weight::new(7).ok(), Percent::new(25).ok());
        let cases = [
            (Some(Weight::ONE), None, (Some(Weight::ONE), None, None)),
            (seven, None, (seven, None, None)),
            (Some(Weight::ONE), quarter, (None, quarter, quarter)),
            (seven, quarter, (seven, quarter, quarter)),
        ];
        for (weight, share, meaning) in cases {
            let old = Record { weight, share, share_limit: None, ..record(2) }.encode_as(1);
            let read = Record::decode(&old).expect("an older record");
            assert_eq!((read.weight, read.share, read.share_limit), meaning);
            assert_eq!(Record::decode(&read.encode()), Ok(read));
        }
        let none = Record { weight: None, share_limit: None, ..record(1) };
        assert_eq!(Record::decode(&none.encode()), Ok(none));
        let limited = Record { share: None, ..record(1) }.encode_as(2);
        let mut first = limited;
        first[8] = 1;
        let sum = crc32c(&first[..SHORT_BYTES - 4]).to_le_bytes();
        first[SHORT_BYTES - 4..].copy_from_slice(&sum);
        assert_eq!(Record::decode(&first), Err(RecordError::Field), "version 1 has no limit");
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = record(3).encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert_eq!(Record::decode(&good[..len]), Err(RecordError::Length(len)));
        }
    }

    /// A record with wrong fields and the right checksum is refused, never a panic.
    #[test]
    fn fields_are_checked_behind_a_right_checksum() {
        let resum = |at: usize, byte: u8| {
            let mut bytes = record(1).encode();
            bytes[at] = byte;
            let sum = crc32c(&bytes[..SHORT_BYTES - 4]).to_le_bytes();
            bytes[SHORT_BYTES - 4..].copy_from_slice(&sum);
            Record::decode(&bytes)
        };
        let (id, name) = (10, 12 + CONTAINER_ID_BYTES_MAX);
        let numbers = name + 2 + NAME_BYTES_MAX;
        let wrong = [
            (id, 129),
            (id, 0),
            (id + 2, b'/'),
            (id + 2 + 5, b'x'),
            (name, 65),
            (name + 2, 0xFF),
            (numbers + 2, 1),
            (numbers + 4, 101),
            (numbers + 4, 51),
            (numbers + 6, 24),
            (numbers + 6, 101),
            (numbers + 8, 3),
            (numbers + 8, 0x83),
            (numbers + 8, 0x41),
            (numbers + 9, 0),
            (numbers + 9, 17),
            (numbers + 10 + 16, 0),
            (numbers + 10 + 24, 1),
            (SHORT_BYTES - 4 - PATH_BYTES_MAX - 1, 2),
        ];
        for (at, byte) in wrong {
            assert_eq!(resum(at, byte), Err(RecordError::Field), "byte {at} = {byte}");
        }
        assert_eq!(resum(8, 9), Err(RecordError::Version(9)));
        assert_eq!(resum(0, 9), Err(RecordError::Magic));
    }

    /// A record that is read, of any version, is read again from its own bytes.
    #[test]
    fn any_bytes_are_a_record_or_an_error() {
        gpuslice_fuzz::fuzz!("records", |bytes| {
            let _ = Record::decode(bytes);
            let mut whole = RECORD_MAGIC.to_vec();
            whole.extend(bytes);
            let long = bytes.first() == Some(&3);
            whole.resize(if long { RECORD_BYTES } else { SHORT_BYTES } - 4, 0);
            whole.extend(crc32c(&whole).to_le_bytes());
            if let Ok(record) = Record::decode(&whole) {
                assert_eq!(Record::decode(&record.encode()), Ok(record));
            }
        });
    }
}
