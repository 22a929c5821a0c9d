//! The daemon's ledger behind `node.sock`: one frame per packet.
//!
//! A request has a connection of its own, and its thread may block. One more thread keeps a watch open for as long
//! as the agent lives; from it come the GPUs' health and their unreserved parts.

use super::{Claimed, Ledger, LedgerError, Own, Rows};
use gpuslice_host::seqpacket;
use gpuslice_wire::frame::{RequestId, decode, encode};
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::node::{GpuFacts, NodeAnswer, NodeRequest, Reservation};
use gpuslice_wire::owner::ClaimId;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{MsgFlags, recv, setsockopt};
use nix::sys::stat::Mode;
use nix::sys::time::{TimeVal, TimeValLike};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time limit for each packet of an answer, seconds.
const ANSWER_SECONDS: i64 = 5;
/// Rows of one answer, at most: the daemon has fewer slices and GPUs.
const ROWS_MAX: usize = 64 << 10;
/// Pause after a watch has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// The id of the only request of a connection.
const ID: RequestId = RequestId(1);

/// The ledger of the daemon that listens at a path.
pub struct Socket {
    path: PathBuf,
    gpus: watch::Receiver<Arc<Vec<GpuFacts>>>,
}

impl Socket {
    /// Uses the socket at `path`. Whether a daemon listens there shows at the first request.
    #[must_use]
    pub fn new(path: &Path) -> Socket {
        let (sender, gpus) = watch::channel(Arc::new(Vec::new()));
        let ours = path.to_owned();
        std::thread::spawn(move || {
            while !sender.is_closed() {
                // A daemon that ended is no news about GPUs: the last ones stay until it answers again.
                let _ = follow(&ours, &sender);
                std::thread::sleep(PAUSE);
            }
        });
        Socket { path: path.to_owned(), gpus }
    }

    async fn ask(&self, request: NodeRequest) -> Result<Vec<NodeAnswer>, LedgerError> {
        let path = self.path.clone();
        let asked = tokio::task::spawn_blocking(move || answers(&path, &request)).await;
        let at = || self.path.display().to_string();
        match asked {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(errno)) => Err(LedgerError::Unreachable(format!("{} ({})", at(), errno.desc()))),
            Err(_) => Err(LedgerError::Unreachable(at())),
        }
    }
}

/// Sends a request, and reads its answer or its rows.
fn answers(path: &Path, request: &NodeRequest) -> nix::Result<Vec<NodeAnswer>> {
    let socket = send(path, request)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(ANSWER_SECONDS))?;
    let mut all = Vec::new();
    while all.len() < ROWS_MAX {
        let answer = receive(&socket)?;
        let row = matches!(
            answer,
            NodeAnswer::Gpu { .. } | NodeAnswer::Slice { .. } | NodeAnswer::Member { .. }
        );
        all.push(answer);
        if !row {
            return Ok(all);
        }
    }
    Err(Errno::EMSGSIZE)
}

fn send(path: &Path, request: &NodeRequest) -> nix::Result<OwnedFd> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|it| it.to_str()))
    else {
        return Err(Errno::EINVAL);
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let socket = seqpacket::connect(open(dir, flags, Mode::empty())?, name)?;
    let mut buffer = [0; FRAME_BYTES_MAX];
    let length = encode(ID, request, &mut buffer).map_err(|_| Errno::EMSGSIZE)?;
    seqpacket::send(&socket, &buffer[..length], &[])?;
    Ok(socket)
}

fn receive(socket: &OwnedFd) -> nix::Result<NodeAnswer> {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let length = loop {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            done => break done?,
        }
    };
    match decode::<NodeAnswer>(&buffer[..length]) {
        _ if length == 0 => Err(Errno::ECONNRESET),
        Ok((id, answer)) if id == ID => Ok(answer),
        _ => Err(Errno::EBADMSG),
    }
}

/// Follows the GPUs until the daemon ends the watch.
fn follow(path: &Path, gpus: &watch::Sender<Arc<Vec<GpuFacts>>>) -> nix::Result<()> {
    let socket = send(path, &NodeRequest::Watch {})?;
    let mut now: BTreeMap<u8, GpuFacts> = BTreeMap::new();
    while !gpus.is_closed() {
        match receive(&socket)? {
            NodeAnswer::Gpu { gpu } => drop(now.insert(gpu.number, gpu)),
            NodeAnswer::End {} => {
                let all: Vec<GpuFacts> = now.values().copied().collect();
                gpus.send_if_modified(|old| {
                    let fresh = **old != all;
                    *old = Arc::new(all);
                    fresh
                });
            }
            NodeAnswer::Denied { .. } => return Err(Errno::EACCES),
            _ => {}
        }
    }
    Ok(())
}

/// The last answer of a request that changes something.
fn last(answers: Vec<NodeAnswer>) -> Result<NodeAnswer, LedgerError> {
    match answers.into_iter().last() {
        Some(NodeAnswer::Denied { why, text }) => {
            Err(LedgerError::Denied { why, text: text.as_str().to_owned() })
        }
        Some(answer) => Ok(answer),
        None => Err(LedgerError::Unreachable("node.sock".to_owned())),
    }
}

/// The rows of a list, members behind their claims.
fn rows(answers: Vec<NodeAnswer>) -> Result<Rows, LedgerError> {
    let mut rows = Rows::default();
    for answer in answers {
        match answer {
            NodeAnswer::Gpu { gpu } => rows.gpus.push(gpu),
            NodeAnswer::Slice {
                claim,
                released,
                name,
                owner,
                gpus,
                memory,
                reserved,
                share,
                ..
            } => {
                let gpus = (0..16).filter(|number| gpus.has(*number)).collect();
                let used = reserved;
                match claim {
                    Some(claim) => rows.claims.push(Claimed {
                        claim,
                        owner,
                        gpus,
                        memory,
                        used,
                        share,
                        released,
                        members: Vec::new(),
                    }),
                    None => {
                        let name = name.as_str().to_owned();
                        rows.own.push(Own { name, owner, gpus, memory, used, share });
                    }
                }
            }
            NodeAnswer::Member { claim, container } => {
                if let Some(row) = rows.claims.iter_mut().find(|row| row.claim == claim) {
                    row.members.push(container);
                }
            }
            NodeAnswer::Denied { why, text } => {
                return Err(LedgerError::Denied { why, text: text.as_str().to_owned() });
            }
            _ => {}
        }
    }
    Ok(rows)
}

/// All rows now, without a runtime: for a command that asks once.
///
/// # Errors
/// The daemon does not answer, or refuses.
pub fn read(path: &Path) -> Result<Rows, LedgerError> {
    let asked = answers(path, &NodeRequest::List {});
    let why = |errno: Errno| format!("{} ({})", path.display(), errno.desc());
    rows(asked.map_err(|errno| LedgerError::Unreachable(why(errno)))?)
}

#[tonic::async_trait]
impl Ledger for Socket {
    async fn rows(&self) -> Result<Rows, LedgerError> {
        rows(self.ask(NodeRequest::List {}).await?)
    }

    async fn reserve(&self, words: &Reservation) -> Result<String, LedgerError> {
        match last(self.ask(NodeRequest::Reserve { words: *words }).await?)? {
            NodeAnswer::Reserved { device } => Ok(device.as_str().to_owned()),
            _ => Err(LedgerError::Unreachable(self.path.display().to_string())),
        }
    }

    async fn release(&self, claim: ClaimId) -> Result<(), LedgerError> {
        last(self.ask(NodeRequest::Release { claim }).await?).map(drop)
    }

    fn gpus(&self) -> watch::Receiver<Arc<Vec<GpuFacts>>> {
        self.gpus.clone()
    }
}
