// SPDX-License-Identifier: Apache-2.0
//! A time limit for calls of SPDK that could wait forever. Some of those that connect wait for an
//! answer without a limit, and a target that hangs after it accepted the connection gives none.
//!
//! After the limit the TCP connections that the call opened, or that were its own before, are shut
//! down. SPDK then sees them closed, as after any other loss, and the call returns its error.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::mpsc;
use std::time::Duration;

/// How often to look for new connections after the limit: SPDK may answer one loss with another
/// attempt.
const LOOK: Duration = Duration::from_millis(100);

/// Names of sockets, as the process's descriptors have them; no two sockets have the same.
pub(super) type Sockets = HashSet<String>;

/// The open sockets of this process.
pub(super) fn open_sockets() -> Sockets {
    sockets().into_iter().map(|(_, name)| name).collect()
}

/// Runs `call`, which communicates with `peer` over `own` sockets and those that it opens. Shuts
/// these down when it takes longer than `limit`. No other thread connects to `peer` meanwhile.
pub(super) fn bounded<T>(
    limit: Duration,
    peer: Option<SocketAddr>,
    own: &Sockets,
    call: impl FnOnce() -> T,
) -> T {
    let Some(peer) = peer else { return call() };
    let others: Sockets = open_sockets().difference(own).cloned().collect();
    let (done, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = std::thread::Builder::new().name("stn-spdk-watch".into());
        let watching = watch.spawn_scoped(scope, move || {
            let mut patience = limit;
            while ended.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                patience = LOOK;
                cut(peer, &others);
            }
        });
        if let Err(error) = watching {
            tracing::warn!(%error, "no thread to watch a connection being made: it may wait without end");
        }
        let result = call();
        drop(done);
        result
    })
}

/// The TCP peer that a transport ID names, if it names one by number.
pub(super) fn peer(transport_id: &str) -> Option<SocketAddr> {
    let field = |name: &str| {
        transport_id.split_whitespace().find_map(|part| {
            let (key, value) = part.split_once([':', '='])?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    };
    let is_tcp = field("trtype").is_some_and(|kind| kind.eq_ignore_ascii_case("tcp"));
    let address: IpAddr = field("traddr")?.parse().ok()?;
    let port: u16 = field("trsvcid")?.parse().ok()?;
    is_tcp.then_some(SocketAddr::new(address, port))
}

/// The process's sockets: each descriptor, and the socket's own name.
fn sockets() -> Vec<(RawFd, String)> {
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let socket = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let target = fs::read_link(entry.path()).ok()?;
        let name = target.to_str()?;
        name.starts_with("socket:").then(|| (number, name.to_owned()))
    };
    descriptors.filter_map(Result::ok).filter_map(socket).collect()
}

fn cut(peer: SocketAddr, others: &Sockets) {
    for (number, name) in sockets() {
        if others.contains(&name) {
            continue;
        }
        // SAFETY: only to make another descriptor of it, which fails if it was closed meanwhile.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        // From here on our own descriptor refers to the socket, whatever happens to the number.
        let Ok(own) = borrowed.try_clone_to_owned() else { continue };
        let stream = TcpStream::from(own);
        if stream.peer_addr().is_ok_and(|found| found == peer) {
            tracing::warn!(%peer, "the target does not answer: its connection is closed");
            // A connection that is closed already needs no more.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn only_tcp_peers_named_by_number_are_found() {
        let id = "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.x:drive0";
        assert_eq!(peer(id), Some("127.0.0.1:4420".parse().unwrap()));
        assert_eq!(peer("trtype:PCIe traddr:0000:04:00.0"), None);
        assert_eq!(peer("trtype:RDMA traddr:127.0.0.1 trsvcid:4420"), None);
        assert_eq!(peer("trtype:TCP traddr:storage.example trsvcid:4420"), None);
    }

    #[test]
    fn a_call_that_hangs_is_cut_and_nothing_else_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut old = TcpStream::connect(at).unwrap();
        let start = Instant::now();
        let waited = bounded(Duration::from_millis(300), Some(at), &Sockets::new(), || {
            TcpStream::connect(at).unwrap().read(&mut [0]).unwrap()
        });
        assert_eq!(waited, 0);
        assert!(start.elapsed() >= Duration::from_millis(300));
        // The connection from before lives.
        old.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(old.read(&mut [0]).is_err());
        // A call within the limit is not cut.
        assert_eq!(bounded(Duration::from_secs(60), Some(at), &Sockets::new(), || 7), 7);
    }

    #[test]
    fn a_connection_of_its_own_from_before_is_cut_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut other = TcpStream::connect(at).unwrap();
        let before = open_sockets();
        let mut own = TcpStream::connect(at).unwrap();
        let opened = open_sockets().difference(&before).cloned().collect();
        let waited =
            bounded(Duration::from_millis(300), Some(at), &opened, || own.read(&mut [0]).unwrap());
        assert_eq!(waited, 0);
        other.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(other.read(&mut [0]).is_err());
    }
}
