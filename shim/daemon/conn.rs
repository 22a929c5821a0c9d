//! One connection: sends requests and receives their replies.
//!
//! A connection that violates the protocol, times out or ends is dropped, and the process reattaches. The
//! daemon then learns from `Attach { held }` what this process holds, so both sides agree again.

use super::credit::CreditReply;
use super::sys::{self, Stamp};
use gpuslice_wire::frame::{RequestId, decode, encode};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{FRAME_BYTES_MAX, HEARTBEAT_STALE_NS};
use gpuslice_wire::tenant::{HandleKey, Reply, Request};
use gpuslice_wire::units::{Bytes, Duration, Instant};
use std::io::{ErrorKind, Result};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;

/// A connection whose `Attach` was answered.
#[derive(Debug)]
pub struct Conn {
    /// `None` once the connection is given up.
    fd: Option<OwnedFd>,
    stamp: Option<Stamp>,
    next: u64,
}

/// The contents of an `Attached` reply.
#[derive(Debug)]
pub struct Welcome {
    /// GPUs of the slice.
    pub lanes: u8,
    /// The container's page, read-only.
    pub container: OwnedFd,
    /// The process's own page.
    pub client: OwnedFd,
    /// The eventfd that notifies the daemon.
    pub doorbell: OwnedFd,
    /// The container's usage table.
    pub usage: OwnedFd,
}

impl Conn {
    /// A connection over a connected socket.
    pub(super) fn over(fd: OwnedFd) -> Conn {
        let stamp = sys::stamp(fd.as_raw_fd());
        Conn { fd: Some(fd), stamp, next: 0 }
    }

    /// Connects, and attaches by `request`: with the memory that the process holds, or for reading alone.
    ///
    /// # Errors
    /// Of the connection; `PermissionDenied` when the daemon rejected the attach.
    pub fn attach(path: &Path, request: &Request, deadline: Instant) -> Result<(Conn, Welcome)> {
        let mut conn = Conn::over(sys::connect(path)?);
        let id = conn.send(request, deadline)?;
        let (reply, descriptors) = conn.reply(id, deadline)?;
        let descriptors: std::result::Result<[OwnedFd; sys::DESCRIPTORS], _> =
            descriptors.try_into();
        match (reply, descriptors) {
            (Reply::Attached { lanes, .. }, Ok([container, client, doorbell, usage])) => {
                sys::tag(&doorbell);
                Ok((conn, Welcome { lanes, container, client, doorbell, usage }))
            }
            (Reply::Rejected { .. }, _) => Err(ErrorKind::PermissionDenied.into()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Asks for credit. The answer may take long: other containers may first have to give the memory back, or
    /// this one is suspended. A daemon that `is_stale` is given up at the deadline.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn reserve(
        &mut self,
        lane: Lane,
        (need, wish): (u64, u64),
        deadline: Instant,
        is_stale: impl Fn() -> bool,
    ) -> Result<CreditReply> {
        let request = Request::Reserve { lane, need: Bytes(need), wish: Bytes(wish) };
        let id = self.send(&request, deadline)?;
        match self.late_reply(id, deadline, is_stale)?.0 {
            Reply::Reserved { lane: of, bytes } if of == lane => Ok(CreditReply::Granted(bytes.0)),
            Reply::Refused { lane: of, .. } if of == lane => Ok(CreditReply::Refused),
            Reply::Rejected { .. } => Err(ErrorKind::PermissionDenied.into()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Sends a request that has no reply.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn tell(&mut self, request: &Request, deadline: Instant) -> Result<()> {
        self.send(request, deadline).map(|_| ())
    }

    /// Asks for this process's memory on a GPU as the driver reports it; `None` if the driver does not. The answer may
    /// take as long as the daemon waits for NVML. A daemon that `is_stale` is given up at the deadline.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn measure(
        &mut self,
        lane: Lane,
        deadline: Instant,
        is_stale: impl Fn() -> bool,
    ) -> Result<Option<u64>> {
        let id = self.send(&Request::Measure { lane }, deadline)?;
        match self.late_reply(id, deadline, is_stale)?.0 {
            Reply::Measured { lane: of, used } if of == lane => Ok(used.map(|bytes| bytes.0)),
            Reply::Rejected { .. } => Err(ErrorKind::PermissionDenied.into()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Asks whether a process of this container exported a handle.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn origin(&mut self, key: HandleKey, deadline: Instant) -> Result<bool> {
        let id = self.send(&Request::Open { key }, deadline)?;
        match self.reply(id, deadline)?.0 {
            Reply::Origin { ours } => Ok(ours),
            Reply::Rejected { .. } => Err(ErrorKind::PermissionDenied.into()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Whether the daemon still holds its end of the connection; does not block.
    pub fn is_alive(&mut self) -> bool {
        let Ok(fd) = self.fd() else { return false };
        let mut frame = [0; FRAME_BYTES_MAX];
        // The daemon sends only replies, so no data is the expected result. A late reply cannot arrive: a
        // request that times out ends the connection.
        let silence = sys::receive(fd, &mut frame, Instant(0));
        matches!(silence, Err(error) if error.kind() == ErrorKind::TimedOut)
    }

    fn fd(&mut self) -> Result<RawFd> {
        let Some(fd) = &self.fd else {
            return Err(ErrorKind::NotConnected.into());
        };
        if sys::stamp(fd.as_raw_fd()) == self.stamp {
            return Ok(fd.as_raw_fd());
        }
        // The application closed this descriptor and may have reused its number: leave it open.
        let _theirs = self.fd.take().map(IntoRawFd::into_raw_fd);
        Err(ErrorKind::NotConnected.into())
    }

    fn send(&mut self, request: &Request, deadline: Instant) -> Result<RequestId> {
        self.next += 1;
        let (id, mut frame) = (RequestId(self.next), [0; FRAME_BYTES_MAX]);
        let len = encode(id, request, &mut frame).map_err(|_| ErrorKind::InvalidInput)?;
        sys::send(self.fd()?, &frame[..len], deadline)?;
        Ok(id)
    }

    /// A reply that a living daemon may give after the deadline.
    fn late_reply(
        &mut self,
        id: RequestId,
        mut deadline: Instant,
        is_stale: impl Fn() -> bool,
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        while let Err(error) = sys::wait(self.fd()?, libc::POLLIN, deadline) {
            if error.kind() != ErrorKind::TimedOut || is_stale() {
                return Err(error);
            }
            deadline = sys::now().plus(Duration(HEARTBEAT_STALE_NS));
        }
        self.reply(id, deadline)
    }

    fn reply(&mut self, id: RequestId, deadline: Instant) -> Result<(Reply, Vec<OwnedFd>)> {
        let mut frame = [0; FRAME_BYTES_MAX];
        let (len, descriptors) = sys::receive(self.fd()?, &mut frame, deadline)?;
        let (of, reply) = decode::<Reply>(&frame[..len]).map_err(|_| ErrorKind::InvalidData)?;
        let orderly = of == id || matches!(reply, Reply::Rejected { .. });
        if orderly { Ok((reply, descriptors)) } else { Err(ErrorKind::InvalidData.into()) }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // Closes the descriptor only if the application did not; see `fd`.
        let _ = self.fd();
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Daemon, LANE, OTHER, Socket};
    use super::super::golden::memfd;
    use super::*;
    use gpuslice_wire::ids::ClientId;
    use gpuslice_wire::tenant::Rejection;

    fn soon() -> Instant {
        sys::now().plus(Duration(60_000_000_000))
    }

    fn reserved(lane: Lane) -> Reply {
        Reply::Reserved { lane, bytes: Bytes(7) }
    }

    fn refused(lane: Lane) -> Reply {
        Reply::Refused { lane, need: Bytes(7), left: Bytes(3) }
    }

    fn measured(lane: Lane) -> Reply {
        Reply::Measured { lane, used: Some(Bytes(5)) }
    }

    /// What becomes of the first request of a connection with this reply.
    fn after<T>(
        reply: &Reply,
        ask: impl Fn(&mut Conn) -> Result<T>,
    ) -> std::result::Result<T, ErrorKind> {
        let (mut conn, daemon) = Daemon::connected();
        daemon.answers(1, reply);
        ask(&mut conn).map_err(|error| error.kind())
    }

    #[test]
    fn an_attach_is_rejected_or_brings_four_descriptors() {
        let attached = Reply::Attached { client: ClientId { slot: 1, generation: 1 }, lanes: 3 };
        let rejected = Reply::Rejected { why: Rejection::Overdrawn };
        let invalid = Err(ErrorKind::InvalidData);
        let rows = [
            (attached.clone(), 4, Ok(3)),
            (attached, 3, invalid),
            (reserved(LANE), 4, invalid),
            (rejected, 0, Err(ErrorKind::PermissionDenied)),
        ];
        for (reply, number, expected) in rows {
            let files = [(); 4].map(|()| memfd(&[]));
            let sent = files.each_ref().map(AsRawFd::as_raw_fd);
            let socket = Socket::new(move |it| it.answers_with(1, &reply, &sent[..number]));
            let attached = Conn::attach(&socket.0, &Request::Look {}, soon());
            if let Ok((_, Welcome { container, client, doorbell, usage, .. })) = &attached {
                let got = [container, client, doorbell, usage].map(AsRawFd::as_raw_fd);
                assert_eq!(got.map(sys::stamp), sent.map(sys::stamp));
                assert!(sys::Doorbell::new(got[2]).get().is_some(), "it is tagged");
            }
            assert_eq!(attached.map(|it| it.1.lanes).map_err(|error| error.kind()), expected);
        }
    }

    /// The program has closed the connection's descriptor and uses its number.
    #[test]
    fn a_file_with_the_number_of_the_connection_stays_open() {
        let ((conn, _daemon), theirs) = (Daemon::connected(), memfd(&[]));
        let number = conn.fd.as_ref().expect("a socket").as_raw_fd();
        sys::replace(&theirs, number).expect("replaced");
        drop(conn);
        assert_eq!(sys::stamp(number), sys::stamp(theirs.as_raw_fd()));
        sys::close(number);
    }

    #[test]
    fn a_reply_about_another_lane_or_request_is_invalid() {
        let reserve = |conn: &mut Conn| conn.reserve(LANE, (7, 9), soon(), || false);
        assert_eq!(after(&reserved(LANE), reserve), Ok(CreditReply::Granted(7)));
        assert_eq!(after(&refused(LANE), reserve), Ok(CreditReply::Refused));
        let measure = |conn: &mut Conn| conn.measure(LANE, soon(), || false);
        assert_eq!(after(&measured(LANE), measure), Ok(Some(5)));
        let origin = |conn: &mut Conn| conn.origin(HandleKey(1), soon());
        assert_eq!(after(&Reply::Origin { ours: true }, origin), Ok(true));
        for reply in [reserved(OTHER), refused(OTHER), measured(LANE)] {
            assert_eq!(after(&reply, reserve), Err(ErrorKind::InvalidData), "{reply:?}");
        }
        for reply in [measured(OTHER), reserved(LANE)] {
            assert_eq!(after(&reply, measure), Err(ErrorKind::InvalidData), "{reply:?}");
        }
        assert_eq!(after(&reserved(LANE), origin), Err(ErrorKind::InvalidData));
    }

    #[test]
    fn a_rejection_is_no_answer() {
        let rejected = Reply::Rejected { why: Rejection::Overdrawn };
        let denied = ErrorKind::PermissionDenied;
        assert_eq!(after(&rejected, |it| it.reserve(LANE, (7, 9), soon(), || false)), Err(denied));
        assert_eq!(after(&rejected, |it| it.measure(LANE, soon(), || false)), Err(denied));
        assert_eq!(after(&rejected, |it| it.origin(HandleKey(1), soon())), Err(denied));
    }

    #[test]
    fn each_request_has_a_number_of_its_own() {
        let (mut conn, daemon) = Daemon::connected();
        daemon.answers(1, &measured(LANE));
        daemon.answers(1, &measured(LANE));
        assert_eq!(conn.measure(LANE, soon(), || false).ok(), Some(Some(5)));
        let late = conn.measure(LANE, soon(), || false).map_err(|error| error.kind());
        assert_eq!(late, Err(ErrorKind::InvalidData), "the answer to the first one");
    }

    #[test]
    fn a_connection_is_alive_until_the_daemon_ends_it() {
        let (mut conn, daemon) = Daemon::connected();
        assert!(conn.is_alive());
        drop(daemon);
        assert!(!conn.is_alive());
        let (mut conn, daemon) = Daemon::connected();
        daemon.answers(1, &measured(LANE));
        assert!(!conn.is_alive(), "no request was sent");
    }

    /// A daemon that lives is waited for, however long it takes; one that does not, until the deadline.
    #[test]
    fn the_deadline_of_a_reservation_ends_only_with_the_daemon() {
        let (mut conn, _daemon) = Daemon::connected();
        let looks = core::cell::Cell::new(0);
        let is_stale = || looks.replace(looks.get() + 1) > 0;
        let gone = conn.reserve(LANE, (7, 9), Instant(0), is_stale).map_err(|error| error.kind());
        assert_eq!((gone, looks.get()), (Err(ErrorKind::TimedOut), 2));
    }
}
