//! Sending bytes that nobody should send, and what comes of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use highwater_tests::Random;
use highwater_tests::requests::{Frame, Width, fix_length};

/// What the broker did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A whole frame came back, with this correlation id.
    Answered(i32),
    /// The connection was closed.
    Closed,
    /// Nothing came within the limit: a produce that wants no answer, a fetch that was told to wait, or a frame whose
    /// end never comes.
    Silent,
}

/// How long to wait for an answer. A broker that needs longer has a problem; one that was told to be silent costs the
/// test this much.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);

/// A connection that is opened again when the broker closed it.
#[derive(Debug)]
pub(super) struct Attacker {
    address: SocketAddr,
    stream: Option<TcpStream>,
    limit: Duration,
}

impl Attacker {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, stream: None, limit: ANSWER_LIMIT }
    }

    /// With another limit for the answer.
    pub(super) fn waiting(address: SocketAddr, limit: Duration) -> Self {
        Self { address, stream: None, limit }
    }

    /// Sends bytes and reads at most one frame. An incomplete frame is followed by the end of the stream.
    pub(super) fn send(&mut self, bytes: &[u8]) -> anyhow::Result<Outcome> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.address, self.limit)?,
        };
        let complete = is_complete(bytes);
        if let Err(error) = stream.write_all(bytes) {
            // The broker may close while the rest is still on its way.
            ensure!(is_closed(error.kind()), "cannot write: {error}");
            return Ok(Outcome::Closed);
        }
        if !complete && stream.shutdown(Shutdown::Write).is_err() {
            return Ok(Outcome::Closed);
        }
        let outcome = read_answer(&mut stream)?;
        if complete && matches!(outcome, Outcome::Answered(_)) {
            self.stream = Some(stream);
        }
        Ok(outcome)
    }
}

fn connect(address: SocketAddr, limit: Duration) -> anyhow::Result<TcpStream> {
    // Thousands of connections a second can use up the free ports for a moment.
    for _ in 0..200 {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(Duration::from_secs(5)))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => thread::sleep(Duration::from_millis(50)),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot connect to {address}: is the broker gone?"));
            }
        }
    }
    bail!("no free port to connect from")
}

fn read_answer(stream: &mut TcpStream) -> anyhow::Result<Outcome> {
    let mut head = [0; 8];
    match stream.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if is_closed(error.kind()) => return Ok(Outcome::Closed),
        Err(error) if is_timeout(error.kind()) => return Ok(Outcome::Silent),
        Err(error) => return Err(error).context("cannot read"),
    }
    let [a, b, c, d, e, f, g, h] = head;
    let length = i32::from_be_bytes([a, b, c, d]);
    ensure!((4..=64 << 20).contains(&length), "an answer says it has {length} bytes");
    let mut rest = vec![0; usize::try_from(length - 4)?];
    stream.read_exact(&mut rest).context("an answer is cut off")?;
    Ok(Outcome::Answered(i32::from_be_bytes([e, f, g, h])))
}

fn is_closed(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Whether the bytes hold all that their length prefix says, and no byte more.
fn is_complete(bytes: &[u8]) -> bool {
    let Some((prefix, rest)) = bytes.split_first_chunk::<4>() else { return false };
    usize::try_from(i32::from_be_bytes(*prefix)) == Ok(rest.len())
}

/// One way of spoiling a frame.
pub(super) fn mutate(frame: &Frame, random: &mut Random) -> Vec<u8> {
    let mut bytes = frame.bytes.clone();
    for _ in 0..=random.below(3) {
        // After the length prefix: that one is spoilt on its own below.
        let at = 4 + random.below(bytes.len().saturating_sub(4).max(1));
        match random.below(9) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.byte(),
            2 => bytes[at] = *random.choose(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
            3 => bytes.truncate(at.max(5)),
            4 => bytes.extend((0..1 + random.below(64)).map(|_| random.byte())),
            5 => {
                let end = (at + 1 + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => {
                let end = (at + 1 + random.below(32)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            7 => {
                let number = *random.choose(&[i32::MAX, i32::MIN, -1, 0x00ff_ffff, 0x7fff, 100_000_000]);
                let end = (at + 4).min(bytes.len());
                bytes.splice(at..end, number.to_be_bytes());
            }
            _ => {
                let count = *random.choose(&frame.counts);
                if count.at + count.bytes <= bytes.len() {
                    let value = hostile_count(count.width, random);
                    bytes.splice(count.at..count.at + count.bytes, value);
                }
            }
        }
        if bytes.len() < 6 {
            bytes.resize(6, 0);
        }
    }
    fix_length(&mut bytes);
    if random.once_in(20) {
        let length: i32 = *random.choose(&[i32::MAX, i32::MIN, -1, 0, 1, 3, 4, 7, 100 << 20, 1 << 30, 1_195_725_856]);
        bytes[..4].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

/// A count that promises what does not follow.
fn hostile_count(width: Width, random: &mut Random) -> Vec<u8> {
    match width {
        Width::Int16 => random.choose(&[i16::MAX, i16::MIN, -2, 0, 255]).to_be_bytes().to_vec(),
        Width::Int32 => random.choose(&[i32::MAX, i32::MIN, -2, -1, 0, 1 << 20, 1 << 28]).to_be_bytes().to_vec(),
        Width::Varint => random.choose(ENDLESS_VARINTS).to_vec(),
    }
}

/// Varints of 2^31, 2^32 - 1, 2^28, the largest of five bytes, and ones that never end.
const ENDLESS_VARINTS: &[&[u8]] = &[
    &[0x80, 0x80, 0x80, 0x80, 0x08],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x01],
    &[0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
    &[0x00],
];
