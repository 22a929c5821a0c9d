//! The shared pages from the tenant's side: what they say, and what cannot be done to them.

use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::wire::{Attached, client_page, container_page, map};
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ContainerPage, PAGE_VERSION, may_launch,
};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, GIB};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl, open};
use nix::sys::mman::ProtFlags;
use nix::sys::stat::Mode;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn the_pages_say_who_and_how_much_and_the_heart_beats() {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    let tenant = node.tenant("a");
    let attached = tenant.attach(Bytes::ZERO);
    let (page, mine) = (container_page(&attached), client_page(&attached));
    assert_eq!(page.magic.load(SeqCst), CONTAINER_PAGE_MAGIC);
    assert_eq!(mine.magic.load(SeqCst), CLIENT_PAGE_MAGIC);
    assert_eq!((page.version.load(SeqCst), page.lanes.load(SeqCst)), (PAGE_VERSION, 1));
    assert_eq!(page.lane[0].cap.load(SeqCst), GIB);
    let uuid = node.admin().list().into_iter().find_map(|row| match row {
        Snapshot::Gpu { uuid, index, .. } if index.0 == 0 => Some(uuid),
        _ => None,
    });
    let halves = [&page.lane[0].uuid_high, &page.lane[0].uuid_low].map(|half| half.load(SeqCst));
    assert_eq!(halves.map(u64::to_be_bytes).concat(), uuid.expect("GPU 0").0);
    tenant.reserve(0, 1 << 20, 1 << 20);
    eventually("the page's sum", || page.lane[0].reserved.load(SeqCst) == 1 << 20);
    let then = page.heartbeat_ns.load(SeqCst);
    eventually("a heartbeat", || page.heartbeat_ns.load(SeqCst) > then);
}

#[test]
fn a_tenant_can_neither_write_nor_resize_the_page() {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    let attached = node.tenant("a").attach(Bytes::ZERO);
    let fd = &attached.container_page;
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    assert_eq!(map::<ContainerPage>(fd, both).err(), Some(Errno::EPERM));
    let read = map::<ContainerPage>(fd, ProtFlags::PROT_READ).expect("readable");
    // SAFETY: the mapping was just made, is a page long, and nothing refers to it.
    let raised = unsafe { nix::sys::mman::mprotect(read.cast(), 4096, both) };
    assert_eq!(raised, Err(Errno::EACCES));
    assert_eq!(nix::unistd::write(fd, b"x"), Err(Errno::EPERM));
    for fd in [fd, &attached.client_page, &attached.usage] {
        assert_eq!(nix::unistd::ftruncate(fd, 0), Err(Errno::EPERM));
        assert_eq!(nix::unistd::ftruncate(fd, 1 << 20), Err(Errno::EPERM));
    }
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    assert_eq!(fallocate(fd, hole, 0, 4096), Err(Errno::EPERM));
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let again = open(path.as_str(), OFlag::O_RDWR, Mode::empty()).expect("opened");
    assert_eq!(map::<ContainerPage>(&again, both).err(), Some(Errno::EPERM));
    let more = FcntlArg::F_ADD_SEALS(nix::fcntl::SealFlag::F_SEAL_WRITE);
    assert_eq!(fcntl(fd, more), Err(Errno::EPERM));
}

fn ring(attached: &Attached) {
    nix::unistd::write(&attached.bell, &1u64.to_ne_bytes()).expect("rung");
}

/// Two containers that want one GPU get turns, never both at once; the doorbell is enough to be
/// heard, and a bell whose flags the tenant changed cannot stop the daemon.
#[test]
fn two_that_want_take_turns() {
    let node = Node::start();
    let tenants = ["a", "b"].map(|name| {
        node.must_admit(name, Bytes(GIB));
        let tenant = node.tenant(name);
        let attached = tenant.attach(Bytes::ZERO);
        (tenant, attached)
    });
    fcntl(&tenants[0].1.bell, FcntlArg::F_SETFL(OFlag::empty())).expect("made blocking");
    let pages = [container_page(&tenants[0].1), container_page(&tenants[1].1)];
    for (_, attached) in &tenants {
        client_page(attached).lane[0].runnable.store(1, SeqCst);
        ring(attached);
    }
    eventually("turns on both", || pages.iter().all(|page| page.gated.load(SeqCst) == 1));
    let mut turns = [0u32; 2];
    eventually("ten turns each", || {
        let now = pages.map(|page| page.lane[0].turn.load(SeqCst));
        // The words are read one after the other: only an unchanged pair was there at once.
        let same = now == pages.map(|page| page.lane[0].turn.load(SeqCst));
        assert!(!same || !now.iter().all(|turn| may_launch(*turn)), "both at once: {now:?}");
        turns = now;
        turns.iter().all(|turn| *turn >= 20)
    });
    for (_, attached) in &tenants {
        client_page(attached).lane[0].runnable.store(0, SeqCst);
        ring(attached);
    }
    eventually("open again", || pages.iter().all(|page| page.gated.load(SeqCst) == 0));
}
