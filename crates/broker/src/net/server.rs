//! The listening socket: accepting within limits, and stopping.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::connection::{ConnectionLimits, End, serve};
use super::frame::FrameMemory;
use super::{Close, ConnectionInfo, Service};
use crate::config::{BrokerConfig, ListenAddress};

/// How long accepting pauses when the system has no file descriptor or memory for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Lines about misbehaving peers are written at most this often: anybody can make the broker close a connection.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What bounds a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerLimits {
    /// Connections at a time; further ones wait to be accepted.
    pub(crate) connections_max: usize,
    /// Connections of one address; further ones are closed.
    pub(crate) connections_per_ip_max: usize,
    /// Bytes of requests that are being read or answered.
    pub(crate) queued_bytes_max: usize,
    /// The bounds of each connection.
    pub(crate) connection: ConnectionLimits,
}

impl From<&BrokerConfig> for ServerLimits {
    fn from(config: &BrokerConfig) -> Self {
        // Far enough that adding it to the present is still a time.
        let never_ms = 100 * 365 * 24 * 3_600_000;
        Self {
            connections_max: config.connections_max,
            connections_per_ip_max: config.connections_per_ip_max,
            queued_bytes_max: config.queued_request_bytes_max,
            connection: ConnectionLimits {
                frame_bytes_max: config.request_bytes_max,
                in_flight_max: config.in_flight_requests_max,
                idle_max: Duration::from_millis(config.connections_idle_max_ms.min(never_ms)),
            },
        }
    }
}

/// A socket that listens; connections wait in its backlog until it is served.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    local: SocketAddr,
}

impl Listener {
    /// Listens on an address; an empty host stands for every interface, port 0 for a free one.
    pub(crate) async fn bind(address: &ListenAddress, backlog: u32) -> io::Result<Self> {
        let candidates: Vec<SocketAddr> = if address.host.is_empty() {
            // A dual-stack socket where the system has IPv6.
            let every = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
            every.map(|ip| SocketAddr::new(ip, address.port)).into()
        } else {
            lookup_host((address.host.as_str(), address.port)).await?.collect()
        };
        let mut failure = io::Error::new(io::ErrorKind::AddrNotAvailable, "the host has no address");
        for candidate in candidates {
            match listen(candidate, backlog) {
                Ok(listener) => return Ok(Self { local: listener.local_addr()?, listener }),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The address, with the port that was found if it was to be a free one.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepts and serves connections until stopped.
    pub(crate) fn serve<S: Service>(self, service: Arc<S>, limits: ServerLimits) -> Server {
        let (stop, stopping) = watch::channel(Stop::Not);
        let acceptor = Acceptor {
            service,
            memory: Arc::new(FrameMemory::new(limits.queued_bytes_max)),
            seats: Arc::new(Semaphore::new(limits.connections_max.min(Semaphore::MAX_PERMITS))),
            per_ip: Arc::default(),
            complaints: Arc::new(RateLimit::default()),
            limits: Arc::new(limits),
        };
        let task = tokio::spawn(acceptor.run(self.listener, stopping));
        Server { stop, task }
    }
}

fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait for the connections of the life before to leave the kernel's memory.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

/// A server that runs. Dropping it stops it at once, without waiting.
#[derive(Debug)]
pub(crate) struct Server {
    stop: watch::Sender<Stop>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Not,
    /// Take no further request, answer those that were taken, at most for so long.
    Within(Duration),
    Now,
}

impl Server {
    /// Stops accepting and reading, lets the requests in flight be answered for at most `within`, then closes what is
    /// left.
    pub(crate) async fn stop(mut self, within: Duration) {
        self.stop.send_replace(Stop::Within(within));
        // An error means that the task panicked or was aborted: it is at its end in any case.
        let _ = (&mut self.task).await;
    }

    /// Closes everything at once, as a killed process would, and returns when it is closed.
    pub(crate) async fn abort(mut self) {
        self.stop.send_replace(Stop::Now);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Acceptor<S> {
    service: Arc<S>,
    memory: Arc<FrameMemory>,
    seats: Arc<Semaphore>,
    per_ip: Arc<PerIp>,
    complaints: Arc<RateLimit>,
    limits: Arc<ServerLimits>,
}

impl<S: Service> Acceptor<S> {
    async fn run(self, listener: TcpListener, mut stopping: watch::Receiver<Stop>) {
        let (drain, draining) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut accepted = 0u64;
        let stop = loop {
            tokio::select! {
                biased;
                stop = asked_to(&mut stopping, |stop| stop != Stop::Not) => break stop,
                Some(_) = connections.join_next() => {}
                (seat, connection) = self.accept(&listener) => match connection {
                    Ok((stream, peer)) => {
                        accepted += 1;
                        self.start(&mut connections, stream, peer, accepted, seat, draining.clone());
                    }
                    Err(error) => {
                        self.complaints.say(|skipped| tracing::warn!(%error, skipped, "cannot accept a connection"));
                        if !is_the_peers_fault(&error) {
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                },
            }
        };
        drop(listener);
        if let Stop::Within(within) = stop {
            drain.send_replace(true);
            let all = async { while connections.join_next().await.is_some() {} };
            // A second, harder stop may come while this one waits.
            tokio::select! {
                _ = tokio::time::timeout(within, all) => {}
                _ = asked_to(&mut stopping, |stop| stop == Stop::Now) => {}
            }
        }
        connections.shutdown().await;
    }

    async fn accept(&self, listener: &TcpListener) -> (OwnedSemaphorePermit, io::Result<(TcpStream, SocketAddr)>) {
        let seat = match self.seats.clone().try_acquire_owned() {
            Ok(seat) => seat,
            Err(_) => {
                let most = self.limits.connections_max;
                self.complaints.say(|skipped| tracing::warn!(most, skipped, "no further connection is accepted"));
                self.seats.clone().acquire_owned().await.expect("the semaphore is never closed")
            }
        };
        (seat, listener.accept().await)
    }

    fn start(
        &self,
        connections: &mut JoinSet<()>,
        stream: TcpStream,
        peer: SocketAddr,
        id: u64,
        seat: OwnedSemaphorePermit,
        draining: watch::Receiver<bool>,
    ) {
        let Some(place) = self.per_ip.clone().enter(peer.ip(), self.limits.connections_per_ip_max) else {
            self.complaints
                .say(|skipped| tracing::warn!(%peer, skipped, "closed: too many connections of this address"));
            return;
        };
        // Answers are written whole: waiting to join them only delays them. Fails only on a dead socket.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let info = Arc::new(ConnectionInfo { id, peer });
        let (service, memory, limits) = (self.service.clone(), self.memory.clone(), self.limits.clone());
        let complaints = self.complaints.clone();
        connections.spawn(async move {
            let end = serve(stream.into_split(), info, service, &limits.connection, memory, draining).await;
            match end {
                End::Closed(close) => {
                    complaints.say(|skipped| tracing::warn!(%peer, %close, skipped, "closed a connection"))
                }
                End::Io(error) => tracing::debug!(%peer, %error, "a connection failed"),
                End::Idle => tracing::debug!(%peer, "closed an idle connection"),
                End::Quiet => {}
            }
            drop((seat, place));
        });
    }
}

/// Serves one connection that no listener accepted, with the bounds of a server for itself, to its end. Returns why it was closed
/// if that was for what the client sent.
pub(crate) async fn serve_alone<S, R, W>(
    (reader, writer): (R, W),
    service: Arc<S>,
    limits: &ServerLimits,
) -> Option<Close>
where
    S: Service,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let info = Arc::new(ConnectionInfo { id: 0, peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) });
    let memory = Arc::new(FrameMemory::new(limits.queued_bytes_max));
    let (_never, draining) = watch::channel(false);
    match serve((reader, writer), info, service, &limits.connection, memory, draining).await {
        End::Closed(close) => Some(close),
        End::Quiet | End::Idle | End::Io(_) => None,
    }
}

/// Waits for such a wish. Without its sender there is nobody left to serve for.
async fn asked_to(stopping: &mut watch::Receiver<Stop>, is_it: impl Fn(Stop) -> bool) -> Stop {
    stopping.wait_for(|&stop| is_it(stop)).await.map_or(Stop::Now, |stop| *stop)
}

/// Whether accepting failed for this one connection, so that the next may be fine.
fn is_the_peers_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused | Interrupted)
}

/// Counts connections by address.
#[derive(Debug, Default)]
struct PerIp {
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection's place in the count.
#[derive(Debug)]
struct Place {
    ip: IpAddr,
    per_ip: Arc<PerIp>,
}

impl PerIp {
    fn enter(self: Arc<Self>, ip: IpAddr, most: usize) -> Option<Place> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(ip).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Place { ip, per_ip: self })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.per_ip.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = counts.entry(self.ip) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// Lets one line through per [`LOG_INTERVAL`] and tells it how many were skipped before.
#[derive(Debug, Default)]
struct RateLimit {
    state: Mutex<(Option<Instant>, u64)>,
}

impl RateLimit {
    fn say(&self, line: impl FnOnce(u64)) {
        let skipped = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
                state.1 += 1;
                return;
            }
            state.0 = Some(Instant::now());
            std::mem::take(&mut state.1)
        };
        line(skipped);
    }
}

#[cfg(test)]
mod tests;
