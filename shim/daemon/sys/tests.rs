//! The wrappers against the kernel.

use super::*;
use crate::daemon::fake::{Socket, in_child};
use crate::daemon::golden::memfd;
use core::sync::atomic::AtomicBool;
use gpuslice_wire::units::Duration;

#[test]
fn pauses_grow_and_stay_short() {
    let mut backoff = Backoff::default();
    let pauses: [u64; 6] = core::array::from_fn(|_| backoff.next() / 1_000_000);
    assert_eq!(pauses, [5, 10, 20, 40, 40, 40], "ms");
}

#[test]
fn a_pause_lasts() {
    let before = now();
    Backoff::default().nap();
    assert!(now().since(before).0 >= 5_000_000);
}

#[test]
fn the_number_of_a_descriptor_is_not_negative() {
    // SAFETY: no descriptor.
    assert!(unsafe { made(-1) }.is_err());
    // SAFETY: the number is given up before it is closed.
    let first = unsafe { made(0) }.map(std::os::fd::IntoRawFd::into_raw_fd);
    assert_eq!(first.ok(), Some(0));
}

/// Where the kernel does not compare a descriptor with itself, it compares none.
#[test]
fn a_copy_of_a_descriptor_is_the_same_file() {
    let open = || File::open("/dev/null").expect("a device");
    let (file, other) = (open(), open());
    let copy = file.try_clone().expect("a copy");
    let own = std::process::id();
    let number = file.as_raw_fd();
    // SAFETY: plain numbers; 0 is `KCMP_FILE`.
    let told = unsafe { libc::syscall(libc::SYS_kcmp, own, own, 0, number, number) } == 0;
    assert_eq!(same_file(copy.as_raw_fd(), number), told);
    assert!(!same_file(other.as_raw_fd(), number), "opened separately");
}

/// All eventfds of a machine share one inode.
#[test]
fn an_eventfd_of_the_program_is_no_doorbell() {
    // SAFETY: plain numbers; the kernel makes a descriptor.
    let eventfd = unsafe { made(libc::eventfd(0, libc::EFD_CLOEXEC)) }.expect("an eventfd");
    let doorbell = Doorbell::new(eventfd.as_raw_fd());
    assert_eq!(doorbell.get(), None);
    tag(&eventfd);
    assert_eq!(doorbell.get(), Some(eventfd.as_raw_fd()));
    doorbell.set(-1);
    assert_eq!((doorbell.get(), doorbell.number.load(SeqCst)), (None, -1));
}

/// A program opens its log for appending, on the file system of the shim's file.
#[test]
fn another_file_with_the_number_of_the_doorbell_is_none() {
    let [ours, theirs] = [(); 2].map(|()| memfd(&[]));
    tag(&ours);
    tag(&theirs);
    let doorbell = Doorbell::new(ours.as_raw_fd());
    assert_eq!(doorbell.get(), Some(ours.as_raw_fd()));
    replace(&theirs, ours.as_raw_fd()).expect("replaced");
    assert_eq!(doorbell.get(), None);
}

#[test]
fn no_descriptor_replaces_a_number_that_is_none() {
    let replaced = replace(&memfd(&[]), -1).map_err(|error| error.raw_os_error());
    assert_eq!(replaced, Err(Some(libc::EBADF)));
}

/// The kernel takes 108 bytes with the null.
#[test]
fn a_long_path_is_reached_through_its_directory() {
    let through = |name: &str, slashes: usize| {
        let made = address(Path::new(&format!("/tmp{}{name}", "/".repeat(slashes))));
        made.map(|(_, directory)| directory.is_some()).map_err(|error| error.kind())
    };
    assert_eq!([through("a", 102), through("a", 103)], [Ok(false), Ok(true)]);
    assert_eq!(through(&"a".repeat(200), 1), Err(ErrorKind::InvalidInput));
    // As long as an address behind "/proc/self/fd/" and the number of the directory, or longer by far.
    let longest = (80..110).filter(|len| through(&"a".repeat(*len), 40).is_ok()).max();
    assert!(longest.is_some_and(|len| (85..93).contains(&len)), "{longest:?}");
}

#[test]
fn a_connection_does_not_block_and_no_program_inherits_it() {
    let socket = Socket::new(|_| ());
    let fd = connect(&socket.0).expect("connected");
    let flags = [libc::F_GETFD, libc::F_GETFL].map(|kind| {
        // SAFETY: plain numbers.
        unsafe { libc::fcntl(fd.as_raw_fd(), kind) }
    });
    assert_eq!(flags, [libc::FD_CLOEXEC, libc::O_RDWR | libc::O_NONBLOCK]);
}

#[test]
fn a_handler_runs_in_each_child() {
    static RAN: AtomicBool = AtomicBool::new(false);
    extern "C" fn runs() {
        RAN.store(true, SeqCst);
    }
    at_fork(runs);
    assert!(in_child(|| RAN.load(SeqCst)) && !RAN.load(SeqCst));
}

fn pair() -> [OwnedFd; 2] {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    let made =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0, "a pair of sockets");
    // SAFETY: the kernel just made them.
    ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[test]
fn a_frame_longer_than_its_room_is_invalid() {
    let [one, other] = pair();
    for (bytes, expected) in [(4, Ok(4)), (5, Err(ErrorKind::InvalidData))] {
        send(other.as_raw_fd(), &[7; 8][..bytes], Instant(0)).expect("sent");
        let got = receive(one.as_raw_fd(), &mut [0; 4], Instant(0));
        assert_eq!(got.map(|it| it.0).map_err(|error| error.kind()), expected);
    }
}

#[test]
fn a_frame_for_which_there_is_no_room_is_sent_until_the_deadline() {
    let [one, _other] = pair();
    let error = (0..100_000).find_map(|_| send(one.as_raw_fd(), &[7; 512], Instant(0)).err());
    assert_eq!(error.map(|it| it.kind()), Some(ErrorKind::TimedOut));
}

/// Most of the signals come while it waits.
#[test]
fn a_signal_does_not_end_a_wait() {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: all-zero bytes are a valid sigaction: no flags, so that a system call ends.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: `action` is valid, and the handler does nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut()) }, 0);
    let ([one, other], deadline) = (pair(), now().plus(Duration(60_000_000_000)));
    let waits = std::thread::spawn(move || wait(one.as_raw_fd(), libc::POLLIN, deadline));
    let thread = std::os::unix::thread::JoinHandleExt::as_pthread_t(&waits);
    for _ in 0..20 {
        // SAFETY: the thread was not joined.
        unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
        nap(1_000_000);
    }
    send(other.as_raw_fd(), &[7], Instant(0)).expect("sent");
    assert!(waits.join().expect("no panic").is_ok());
}

#[test]
fn a_page_of_another_kind_or_length_is_invalid() {
    let page = |magic: u64, version: u32| {
        memfd(&[&magic.to_ne_bytes()[..], &version.to_ne_bytes()].concat())
    };
    let judged = [page(7, 2), page(7, 3), page(8, 2), memfd(&[])]
        .map(|fd| check_head(&fd, 7, 2).map_err(|error| error.kind()));
    let invalid = Err(ErrorKind::InvalidData);
    assert_eq!(judged, [Ok(()), invalid, invalid, invalid]);
    let unread = check_head(&pair()[0], 7, 2).map_err(|error| error.kind());
    assert_eq!(unread, Err(ErrorKind::NotSeekable));
    let mapped = [PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1].map(|len| {
        let mapped = map::<Page>(&memfd(&vec![0; len]), false, None);
        mapped.map(|_| ()).map_err(|error| error.kind())
    });
    assert_eq!(mapped, [invalid, Ok(()), Ok(())]);
}

#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// The process's mappings of the file with this name.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn a_second_mapping_shows_the_same_page_and_ends() {
    // SAFETY: a constant name with a terminating null.
    let fd = unsafe { libc::memfd_create(c"mapped-twice".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the kernel just made it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; PAGE_BYTES], 0).expect("written");
    let page: &Page = map(&file.into(), false, None).expect("mapped");
    let again = SecondMapping::of(page).expect("mapped again");
    assert_ne!(again.address(), ptr::from_ref(page).cast_mut().cast());
    assert_eq!((*again).0[9], 7);
    assert_eq!(mappings("mapped-twice"), 2);
    drop(again);
    assert_eq!(mappings("mapped-twice"), 1);
}

#[test]
fn private_memory_has_no_second_mapping() {
    let page = Box::leak(Box::new(Page([0; PAGE_BYTES])));
    let again = SecondMapping::of(page).map(|_| ());
    assert_eq!(again.map_err(|error| error.raw_os_error()), Err(Some(libc::EINVAL)));
}
