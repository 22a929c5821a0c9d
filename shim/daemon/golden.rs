//! The shared pages as bytes that are checked in: a shim stays mapped in a running container while the daemon is
//! replaced, so each field is where both have always had it. The crate of the layouts has no way to see their bytes.

use super::sys;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientPage, ContainerPage, PAGE_VERSION,
};
use gpuslice_wire::usage::{USAGE_SLOTS, USAGE_TABLE_MAGIC, USAGE_VERSION, UsageTable};
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

const PAGES: &str = include_str!("../../src/wire/golden/pages.txt");

/// A field of a page.
enum Word<'a> {
    Narrow(&'a AtomicU32),
    Wide(&'a AtomicU64),
}

impl Word<'_> {
    /// The value of the word with this number in the file.
    fn expected(&self, number: u16) -> u64 {
        match self {
            Word::Narrow(_) => 0xc0de_0000 | u64::from(number),
            Word::Wide(_) => 0xc0de_c0de_c0de_0000 | u64::from(number),
        }
    }

    fn load(&self) -> u64 {
        match self {
            Word::Narrow(word) => u64::from(word.load(SeqCst)),
            Word::Wide(word) => word.load(SeqCst),
        }
    }

    fn store(&self, value: u64) {
        match self {
            Word::Narrow(word) => word.store(value as u32, SeqCst),
            Word::Wide(word) => word.store(value, SeqCst),
        }
    }
}

impl<'a> From<&'a AtomicU32> for Word<'a> {
    fn from(word: &'a AtomicU32) -> Word<'a> {
        Word::Narrow(word)
    }
}

impl<'a> From<&'a AtomicU64> for Word<'a> {
    fn from(word: &'a AtomicU64) -> Word<'a> {
        Word::Wide(word)
    }
}

/// The named fields with their names.
macro_rules! words {
    ($of:expr => $($field:ident)*) => {
        [$((stringify!($field), Word::from(&$of.$field))),*]
    };
}

type Words<'a> = Vec<(&'static str, Word<'a>)>;

fn of_container(page: &ContainerPage) -> Words<'_> {
    let head = words!(page => lanes epoch heartbeat_ns gated futex hard foreign clients stop);
    let mut all = Vec::from(head);
    for lane in &page.lane {
        all.extend(words!(lane => uuid_high uuid_low cap reserved turn_end_ns turn mode window_us
            idle_us recall context_kib));
    }
    all.extend(page.untracked.iter().map(|word| ("untracked", Word::from(word))));
    all.extend(words!(page => suspended));
    all
}

fn of_client(page: &ClientPage) -> Words<'_> {
    let mut all = Vec::from(words!(page => slot));
    for lane in &page.lane {
        all.extend(words!(lane => held launches denied began_ns unseen runnable active drained
            gate drained_ns));
    }
    for families in &page.families {
        all.extend(families.bytes.iter().map(|word| ("bytes", Word::from(word))));
        all.extend(words!(families => contexts));
    }
    all.extend(words!(page => shared));
    all
}

/// The first two slots and the last one.
fn of_usage(table: &UsageTable) -> Words<'_> {
    let mut all = Vec::from(words!(table => slots));
    for slot in [0, 1, USAGE_SLOTS - 1] {
        all.extend(table.slot[slot].held.iter().map(|word| ("held", Word::from(word))));
    }
    all
}

/// The bytes of the page with this name and version.
fn golden(name: &str, version: u32) -> Vec<u8> {
    let head = format!("v{version} {name} ");
    let mut lines = PAGES.lines().skip_while(|line| !line.starts_with(&head));
    let len = lines.next().expect("it is in the file").trim_start_matches(&head);
    let mut bytes = vec![0; len.parse().expect("a length")];
    for row in lines.map_while(|line| line.strip_prefix("  ")) {
        let (at, digits) = row.split_once(' ').expect("an offset");
        let at = usize::from_str_radix(at, 16).expect("an offset");
        for (byte, pair) in bytes[at..].iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = core::str::from_utf8(pair).expect("digits");
            *byte = u8::from_str_radix(pair, 16).expect("digits");
        }
    }
    bytes
}

pub fn memfd(bytes: &[u8]) -> OwnedFd {
    // SAFETY: a constant name with a terminating null.
    let fd = unsafe { libc::memfd_create(c"golden".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "a memfd");
    // SAFETY: the kernel just made it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all_at(bytes, 0).expect("written");
    file.into()
}

fn content(fd: &OwnedFd, len: usize) -> Vec<u8> {
    let file = File::from(fd.try_clone().expect("a descriptor"));
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

/// Reads every field of the checked-in bytes, and writes every field of an empty page.
fn compare<T: 'static>(
    golden: &[u8],
    magic: u64,
    version: u32,
    words: for<'a> fn(&'a T) -> Words<'a>,
) {
    assert_eq!(golden.len(), size_of::<T>());
    let read = memfd(golden);
    sys::check_head(&read, magic, version).expect("its head");
    let page: &T = sys::map(&read, false, None).expect("mapped");
    for (number, (name, word)) in (1..).zip(words(page)) {
        assert_eq!(word.load(), word.expected(number), "{name}, word {number}");
    }
    let mut empty = vec![0; golden.len()];
    empty[..12].copy_from_slice(&golden[..12]);
    let written = memfd(&empty);
    let page: &T = sys::map(&written, true, None).expect("mapped");
    for (number, (_, word)) in (1..).zip(words(page)) {
        word.store(word.expected(number));
    }
    let bytes = content(&written, golden.len());
    let differs = (0..golden.len()).find(|at| bytes[*at] != golden[*at]);
    assert_eq!(differs, None, "offset of the first byte that differs");
}

#[test]
fn the_shared_pages_have_these_bytes() {
    let container = golden("container-page", PAGE_VERSION);
    compare::<ContainerPage>(&container, CONTAINER_PAGE_MAGIC, PAGE_VERSION, of_container);
    let client = golden("client-page", PAGE_VERSION);
    compare::<ClientPage>(&client, CLIENT_PAGE_MAGIC, PAGE_VERSION, of_client);
    let usage = golden("usage-table", USAGE_VERSION);
    compare::<UsageTable>(&usage, USAGE_TABLE_MAGIC, USAGE_VERSION, of_usage);
}
