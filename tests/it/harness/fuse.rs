//! A FUSE file system with one file, whose server answers until the file is open, and then never again.
//!
//! A process that waits for the server's answer to a request that it has read cannot be killed. So no other process of
//! this machine may come upon the file: it is mounted in a namespace of one thread, and a close of the file asks
//! nothing of the server. The protocol is that of `linux/fuse.h`; here is no more of it than an open file needs.

use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
/// A request's header and an answer's, bytes.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// Bytes for any request: the kernel wants room for a write of the longest size.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// See the file's head. Its server ends with it, and with that every wait for it.
pub struct Unanswering {
    file: File,
    over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Unanswering {
    /// Mounts it and opens the file.
    ///
    /// # Errors
    /// Why this machine or this user cannot mount FUSE.
    pub fn mount() -> Result<Unanswering, String> {
        let (opened, file) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let server = std::thread::spawn(move || serve(&opened, &ends));
        let file = file.recv().map_err(|why| why.to_string())??;
        Ok(Unanswering { file, over, server: Some(server) })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Unanswering {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// The server: sends the open file, then reads requests and answers none until it is over. The end of its descriptor
/// ends the connection: every request fails, and each process that waits goes on.
fn serve(opened: &Sender<Result<File, String>>, over: &AtomicBool) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut device = match mounted(dir.path()) {
        Ok(device) => device,
        Err(why) => return opened.send(Err(why)).expect("the test waits"),
    };
    let path = dir.path().join("file");
    // A thread of this one is in the same namespace. The first close that is not supported is the last that is asked.
    let opens = std::thread::spawn(move || {
        let file = OpenOptions::new().read(true).open(path)?;
        drop(file.try_clone()?);
        Ok::<File, std::io::Error>(file)
    });
    while answer(&mut device) != FLUSH {}
    let file = opens.join().expect("no panic").map_err(|why| why.to_string());
    opened.send(file).expect("the test waits");
    let mut request = vec![0; REQUEST_BYTES_MAX];
    while !over.load(SeqCst) {
        let mut watched = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        if poll(&mut watched, PollTimeout::from(20u8)).is_ok_and(|ready| ready > 0) {
            // A request that was interrupted before it was read is an error.
            let _ = device.read(&mut request);
        }
    }
}

/// Mounts the file system here, in a mount namespace of this thread's own; returns the server's end.
fn mounted(dir: &Path) -> Result<File, String> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let device = device.map_err(|why| format!("/dev/fuse: {why}"))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(|why| format!("no mount namespace: {why}"))?;
    let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
    mount(none, "/", none, private, none).map_err(|why| format!("private mounts: {why}"))?;
    let options =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("gpuslice"), dir, Some("fuse"), flags, Some(options.as_str()))
        .map_err(|why| format!("FUSE cannot be mounted: {why}"))?;
    Ok(device)
}

/// Answers one request; returns what it was.
fn answer(device: &mut File) -> u32 {
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let len = device.read(&mut request).expect("a request");
    assert!(len >= IN_HEADER, "a request has a header");
    let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("four bytes"));
    let (kind, node) = (word(4), word(16));
    let body = match kind {
        INIT => init(),
        LOOKUP => [&entry()[..], &attributes(2)].concat(),
        // Attributes are out of date at once, so that each question for them reaches the server.
        GETATTR => [&[0; 16][..], &attributes(node)].concat(),
        OPEN => vec![0; 16],
        _ => Vec::new(),
    };
    let error = if body.is_empty() { -libc::ENOSYS } else { 0 };
    let mut out = Vec::with_capacity(OUT_HEADER + body.len());
    out.extend(((OUT_HEADER + body.len()) as u32).to_le_bytes());
    out.extend(error.to_le_bytes());
    out.extend(&request[8..16]); // the request's own number
    out.extend(body);
    device.write_all(&out).expect("the kernel takes it");
    kind
}

/// `fuse_init_out` of protocol 7.31, without options.
fn init() -> Vec<u8> {
    let mut out = vec![0; 64];
    out[0..4].copy_from_slice(&7u32.to_le_bytes());
    out[4..8].copy_from_slice(&31u32.to_le_bytes());
    out[20..24].copy_from_slice(&4096u32.to_le_bytes()); // the longest write
    out
}

/// `fuse_entry_out` of the file, up to its attributes: node 2, nothing of it cached.
fn entry() -> Vec<u8> {
    let mut out = vec![0; 40];
    out[0..8].copy_from_slice(&2u64.to_le_bytes());
    out
}

/// `fuse_attr` of the directory, node 1, or of the file.
fn attributes(node: u32) -> Vec<u8> {
    let mode = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    let mut out = vec![0; 88];
    out[0..8].copy_from_slice(&u64::from(node).to_le_bytes());
    out[60..64].copy_from_slice(&mode.to_le_bytes());
    out[64..68].copy_from_slice(&1u32.to_le_bytes()); // links
    out
}
