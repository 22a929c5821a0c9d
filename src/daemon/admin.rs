//! The protocol of the admin socket: the hook and the CLI create, change, remove and list slices. Each command
//! is answered before the next one is read. The observers' socket, which only a service manager creates, answers
//! only the list.

use crate::daemon::{Daemon, Task};
use crate::executor::{NO_REPLY, plain, token_of};
use crate::exit_watch::FirstProcess;
use crate::members::Members;
use crate::paths::host_path;
use crate::peer::Peer;
use crate::poll::Source;
use crate::slab::Key;
use crate::sockets::{Received, Socket, id_of, packet};
use gpuslice_engine::{Ask, Event, TimeChange};
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket::send;
use gpuslice_wire::admin::{Answer, Command, Denial, Mounts};
use gpuslice_wire::frame::{Message, RequestId, decode};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::{FRAME_BYTES_MAX, HELLO_DEADLINE_NS};
use gpuslice_wire::select::{GpuSelector, SelectError};
use gpuslice_wire::text::{HostPath, Selector};
use gpuslice_wire::units::Duration;
use nix::errno::Errno;
use nix::unistd::geteuid;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;

/// Most observers connected at the same time.
const OBSERVERS_MAX: usize = 8;

/// Why a command is refused.
pub type Denied = (Denial, String);

/// An admin connection.
#[derive(Debug)]
pub struct Admin {
    fd: Socket,
    /// Whether it has sent a command.
    pub has_sent: bool,
    /// It may only list slices.
    observes: bool,
    /// Id of the command being answered.
    request: RequestId,
    /// Pid of the process that connected.
    pub pid: i32,
    /// User id of the process that connected.
    pub uid: u32,
    /// First process of the container for which a slice is requested.
    pub first: Option<FirstProcess>,
    /// How to recognise that container's processes.
    pub members: Members,
    /// Slices that end with this connection.
    pub slices: Vec<ContainerId>,
    /// Packets of at most one answer, which wait for room in the socket.
    out: VecDeque<Box<[u8]>>,
}

impl Admin {
    fn new(fd: Socket, (pid, uid): (i32, u32), observes: bool) -> Admin {
        Admin {
            fd,
            has_sent: false,
            observes,
            request: RequestId(0),
            pid,
            uid,
            first: None,
            members: Members::default(),
            slices: Vec::new(),
            out: VecDeque::new(),
        }
    }

    /// Whether it may only list slices.
    pub fn observes(&self) -> bool {
        self.observes
    }
}

/// Accepts the next connection. If no descriptor is left, accepts and closes it with the spare one, so that it
/// does not wait forever and does not keep the daemon busy.
fn next(listener: &Socket, spare: &mut Option<File>) -> Option<Socket> {
    match listener.accept() {
        Ok(fd) => Some(fd),
        Err(Errno::EMFILE | Errno::ENFILE) => {
            tracing::error!("out of descriptors; closed an admin connection");
            *spare = None;
            drop(listener.accept());
            *spare = File::open("/dev/null").ok();
            None
        }
        Err(_) => None,
    }
}

impl Daemon {
    /// Accepts a connection to the admin socket. Only root and the daemon's own user can open its file; the peer's
    /// user is checked as well, in case the file's permissions were changed.
    pub fn accept_admin(&mut self) {
        let Some(fd) = next(&self.admin_listener, &mut self.spare) else {
            return;
        };
        let (pid, uid) = Peer::of(fd.as_fd()).map_or((0, u32::MAX), |peer| (peer.pid, peer.uid));
        let Ok(key) = self.admins.insert(Admin::new(fd, (pid, uid), false)) else {
            return;
        };
        if uid != 0 && uid != geteuid().as_raw() {
            self.deny(
                key,
                Denial::Protocol,
                "only root or the daemon's own user may use this socket",
            );
            self.drop_admin(key);
            return;
        }
        self.is_used();
        self.welcome_admin(key);
    }

    /// Accepts a connection to the observers' socket, whose file's group decides which users may connect. Their
    /// number is limited, so that they never keep administrators out.
    pub fn accept_observer(&mut self) {
        if self.pause(Source::ObserveListener) {
            return;
        }
        let listener = self.observe_listener.as_ref();
        let Some(fd) = listener.and_then(|it| next(it, &mut self.spare)) else {
            return;
        };
        let observers = self.admins.iter().filter(|(_, admin)| admin.observes);
        if observers.count() >= OBSERVERS_MAX {
            return;
        }
        if let Ok(key) = self.admins.insert(Admin::new(fd, (0, u32::MAX), true)) {
            self.welcome_admin(key);
        }
    }

    fn welcome_admin(&mut self, key: Key) {
        let by = now().plus(Duration(HELLO_DEADLINE_NS));
        self.handshake_deadlines.push_back((by, Source::Admin(key)));
        let Some(admin) = self.admins.get(key) else {
            return;
        };
        if self.poll.add(&admin.fd, Source::Admin(key)).is_err() {
            self.drop_admin(key);
        }
    }

    /// Handles an admin connection that is readable, writable or closed.
    pub fn admin_ready(&mut self, key: Key) {
        let Some(admin) = self.admins.get_mut(key) else {
            return;
        };
        if !admin.out.is_empty() {
            return self.flush(key);
        }
        let mut buffer = [0; FRAME_BYTES_MAX];
        match admin.fd.receive(&mut buffer) {
            Received::Packet(len) => {
                (admin.request, admin.has_sent) = (id_of(&buffer[..len]), true);
                let observes = admin.observes;
                match decode::<Command>(&buffer[..len]) {
                    Ok((_, command)) if observes && !matches!(command, Command::List {}) => {
                        self.deny(key, Denial::Protocol, "this socket answers only lists");
                        self.drop_admin(key);
                    }
                    Ok((_, command)) => self.command(key, command),
                    Err(why) => {
                        self.deny(key, Denial::Protocol, &why.to_string());
                        self.drop_admin(key);
                    }
                }
            }
            Received::Nothing => {}
            Received::End | Received::Violation => self.drop_admin(key),
        }
    }

    /// Executes a command.
    pub fn command(&mut self, key: Key, command: Command) {
        let token = token_of(key);
        match command {
            Command::Admit { container, pid, .. } | Command::AdmitFrom { container, pid, .. } => {
                if self.earlier_slice_is_ending(&container) {
                    return self.park(key, command);
                }
                let asked = self.may_admit(key, &container, pid);
                match asked.and_then(|()| self.ask_of(command)) {
                    Err((why, text)) => self.deny(key, why, &text),
                    Ok(ask) => self.enqueue(Event::Admit { token, ask }),
                }
            }
            Command::Dismiss { container } => {
                self.enqueue(Event::Dismiss { token, container });
            }
            Command::Resize {
                container,
                lane,
                memory,
            } => self.resize(token, container, lane, memory),
            Command::SetPolicy { gpu, policy } => self.want_policy(token, gpu, policy),
            Command::Retune {
                container,
                weight,
                share,
                class,
            } => self.tasks.push_back(Task::Step(Event::Retune {
                token,
                container,
                change: TimeChange {
                    weight,
                    share,
                    class,
                },
            })),
            Command::List {} => self.list(key),
        }
    }

    fn list(&mut self, key: Key) {
        self.read_all_claims();
        self.settle();
        let mut rows = self.engine.snapshot(now());
        self.set_memory_enforcement(&mut rows);
        self.set_time_enforcement(&mut rows);
        rows.iter().for_each(|row| self.queue(key, row));
        self.flush(key);
    }

    /// The engine's request for a command that asks for a slice.
    fn ask_of(&self, command: Command) -> Result<Ask, Denied> {
        let bounds = self.requests.bounds(&command)?;
        let (Command::Admit {
            container,
            name,
            gpus,
            whole,
            memory,
            weight,
            share,
            class,
            gang,
            pinned,
            pid,
        }
        | Command::AdmitFrom {
            source: _,
            container,
            name,
            gpus,
            whole,
            memory,
            weight,
            share,
            class,
            gang,
            pinned,
            pid,
        }) = command
        else {
            return Err((Denial::Protocol, "not a request for a slice".to_owned()));
        };
        let invalid = |why: SelectError| (Denial::Invalid, why.to_string());
        Ok(Ask {
            container,
            name,
            gpus: GpuSelector::parse(gpus.as_str()).map_err(invalid)?,
            whole: beside(&whole).map_err(invalid)?,
            memory,
            weight,
            share,
            class,
            gang,
            pinned: pinned.or(self.pinned_default),
            bounds,
            cgroup: self.cgroup_of(&container, pid),
        })
    }

    /// Checks what the engine cannot know: the disk, the descriptor limit, whether the container still runs.
    fn may_admit(&mut self, key: Key, container: &ContainerId, pid: u32) -> Result<(), Denied> {
        self.has_room(container)?;
        self.hold_first_process(key, pid)
    }

    fn has_room(&self, container: &ContainerId) -> Result<(), Denied> {
        let dir = self.state.container_dir(container);
        host_path(&dir).map_err(|why| (Denial::Host, why.to_string()))?;
        let limit = self.budget.containers;
        if self.slices.of(container).is_some() {
            return Ok(()); // the engine refuses with a better error
        }
        if self.slices.len() >= usize::from(limit) {
            let text = format!(
                "{limit} slices exist, as many as containers_max and the daemon's descriptor \
                 limit allow; remove one first, or raise them"
            );
            return Err((Denial::Capacity, text));
        }
        if dir.join("record").exists() {
            let text = format!(
                "{}: its record could not be restored, see the daemon's log; delete it with \
                 gpuslice rm {container}",
                dir.display()
            );
            return Err((Denial::Host, text));
        }
        Ok(())
    }

    /// Answers with the paths a container needs mounted.
    pub fn answer_admitted(&mut self, key: Key, container: &ContainerId) {
        let dir = host_path(&self.state.container_dir(container)).unwrap_or(HostPath::EMPTY);
        let (driver, shim) = (&self.paths.driver, &self.paths.shim);
        let mounts = Mounts {
            dir,
            cuda: driver.cuda,
            nvml: driver.nvml,
            preload: shim.preload,
            mount: shim.mount,
            nvml_shim: shim.nvml_shim,
            device: driver.device,
        };
        self.gave(key, *container);
        self.answer(key, &Answer::Admitted { mounts });
        if self.admins.get(key).is_none() {
            // The client has disconnected: the hook waited too long and its container does not start.
            let (token, container) = (NO_REPLY, *container);
            tracing::warn!(%container, "the client that asked for the slice has disconnected; the slice is removed");
            self.tasks
                .push_back(Task::Step(Event::Dismiss { token, container }));
        }
    }

    /// Refuses a command.
    pub fn deny(&mut self, key: Key, why: Denial, text: &str) {
        self.answer(
            key,
            &Answer::Denied {
                why,
                text: plain(text),
            },
        );
    }

    /// Answers a command if its client is still connected.
    pub fn answer<M: Message>(&mut self, key: Key, message: &M) {
        self.queue(key, message);
        self.flush(key);
    }

    fn queue<M: Message>(&mut self, key: Key, message: &M) {
        if let Some(admin) = self.admins.get_mut(key) {
            let mut buffer = [0; FRAME_BYTES_MAX];
            let len = packet(admin.request, message, &mut buffer);
            admin.out.push_back(buffer[..len].into());
        }
    }

    fn flush(&mut self, key: Key) {
        let Some(admin) = self.admins.get_mut(key) else {
            return;
        };
        while let Some(packet) = admin.out.front() {
            match send(admin.fd.as_fd(), packet, &[]) {
                Ok(()) => drop(admin.out.pop_front()),
                Err(Errno::EAGAIN) => break,
                Err(_) => return self.drop_admin(key),
            }
        }
        // A connection that is being refused is not in the set, which is not an error.
        let waits = !admin.out.is_empty();
        let _ = self
            .poll
            .wait_to_write(admin.fd.as_fd(), Source::Admin(key), waits);
    }
}

/// The GPUs requested as a whole.
fn beside(whole: &Selector) -> Result<Option<GpuSelector>, SelectError> {
    match (whole.is_empty(), GpuSelector::parse(whole.as_str())?) {
        (true, _) => Ok(None),
        // The daemon chooses GPUs for slices only; a whole GPU must be named.
        (false, GpuSelector::Any) => Err(SelectError::Entry),
        (false, gpus) => Ok(Some(gpus)),
    }
}
