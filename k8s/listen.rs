//! Where services listen.

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted, at most.
const WAITING: u32 = 1024;

/// Listens at an address. `[::]` is every address of the machine, of IPv4 too; without IPv6 it is `0.0.0.0`.
///
/// # Errors
/// The address is in use, or not this machine's.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    bound(address, both).await
}

/// The same by `both`, which makes the socket for every address.
async fn bound(
    address: SocketAddr,
    both: impl FnOnce(SocketAddr) -> io::Result<TcpListener>,
) -> Result<TcpListener> {
    let every = address.is_ipv6() && address.ip().is_unspecified();
    let bound = match every.then(|| both(address)) {
        Some(Err(error)) if lacks_v6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        Some(done) => done,
        None => TcpListener::bind(address).await,
    };
    bound.with_context(|| format!("listening at {address}"))
}

/// A socket of IPv6 that takes connections of IPv4 too, whatever the machine's default is.
fn both(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}

/// Whether a machine refuses because it was started without IPv6.
fn lacks_v6(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn every_address_is_of_both_protocols_where_the_machine_has_them() {
        let has_v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok();
        let every = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = listen(every).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
        assert_eq!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_ok(), has_v6);
        let again = listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await;
        let error = again.expect_err("in use");
        assert!(
            format!("{error:#}").starts_with(&format!("listening at [::]:{port}")),
            "{error:#}"
        );
    }

    #[test]
    fn a_machine_without_ipv6_is_recognised() {
        let of = |errno: Errno| lacks_v6(&io::Error::from_raw_os_error(errno as i32));
        assert!(of(Errno::EAFNOSUPPORT) && of(Errno::EADDRNOTAVAIL));
        assert!(!of(Errno::EADDRINUSE) && !of(Errno::EACCES));
    }

    #[tokio::test]
    async fn without_ipv6_every_address_is_one_of_ipv4() {
        let every = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        for refused in [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL] {
            let listener = bound(every, |_| Err(io::Error::from_raw_os_error(refused as i32)));
            let listener = listener.await.expect("a port");
            let address = listener.local_addr().expect("an address");
            assert_eq!(address.ip(), Ipv4Addr::UNSPECIFIED);
            assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).await.is_ok());
        }
        let denied = bound(every, |_| Err(Errno::EACCES.into())).await;
        assert!(denied.is_err(), "another error is none of that");
    }
}
