//! Frames: a length of four bytes, then so many bytes.
//!
//! A frame's buffer grows with what arrives, so a length alone costs nothing, and the bytes of all frames that are
//! being read or answered come out of one [`FrameMemory`].

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// What a socket is read into: small requests arrive in one system call, and longer reads go past it into the frame.
const READ_AHEAD_BYTES: usize = 8 << 10;

/// How much of a frame is reserved on the word of its length, unless more is said. From here on the buffer doubles.
const FIRST_STEP_BYTES: usize = 256 << 10;

/// The unit of [`FrameMemory`].
const UNIT_BYTES: usize = 1 << 10;

/// Why reading a frame failed.
#[derive(Debug)]
pub(crate) enum FrameError {
    /// The length is beyond what is allowed, or not one at all.
    Length {
        /// The length as read.
        length: i32,
        /// The lengths allowed.
        allowed: RangeInclusive<usize>,
    },
    /// The peer stopped in the middle of a frame.
    CutOff,
    /// Nothing came for too long in the middle of a frame.
    Stalled,
    /// The socket failed.
    Io(io::Error),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { length, allowed } => {
                let (least, most) = (allowed.start(), allowed.end());
                write!(f, "a frame of {length} bytes, where {least} to {most} are allowed")?;
                match guess(*length) {
                    Some(protocol) => write!(f, " (this looks like {protocol})"),
                    None => Ok(()),
                }
            }
            Self::CutOff => f.write_str("the connection ended within a frame"),
            Self::Stalled => f.write_str("nothing came for too long within a frame"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

/// What the first four bytes of a connection are, if they are no length.
fn guess(length: i32) -> Option<&'static str> {
    match &length.to_be_bytes() {
        b"GET " | b"HEAD" | b"POST" | b"PUT " | b"HTTP" | b"OPTI" | b"DELE" | b"PATC" | b"PRI " => Some("HTTP"),
        [0x16, 0x03, 0..=4, _] => Some("TLS; this port speaks plain text"),
        b"SSH-" => Some("SSH"),
        _ => None,
    }
}

/// The bytes that frames may take together.
///
/// A reader that finds it used up waits until others are done. So that readers that each hold a part of what they need
/// cannot wait for each other for ever, one of them at a time may go on beyond the limit.
#[derive(Debug)]
pub(crate) struct FrameMemory {
    units: Arc<Semaphore>,
    overdraft: Arc<Mutex<()>>,
}

impl FrameMemory {
    /// Memory for `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(units)), overdraft: Arc::new(Mutex::new(())) }
    }

    async fn take(&self, held: &mut HeldMemory, bytes: usize) {
        if held.overdraft.is_some() {
            return;
        }
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        if let Ok(permit) = self.units.clone().try_acquire_many_owned(units) {
            return held.add(permit);
        }
        tokio::select! {
            permit = self.units.clone().acquire_many_owned(units) => {
                held.add(permit.expect("the semaphore is never closed"));
            }
            guard = self.overdraft.clone().lock_owned() => held.overdraft = Some(guard),
        }
    }

    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.units.available_permits() * UNIT_BYTES
    }
}

/// A frame's share of [`FrameMemory`], given back when dropped.
#[derive(Debug, Default)]
struct HeldMemory {
    units: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedMutexGuard<()>>,
}

impl HeldMemory {
    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.units {
            Some(units) => units.merge(permit),
            None => self.units = Some(permit),
        }
    }
}

/// A frame with its share: as long as any part of it is referred to, its memory is in use. A produce that waits for
/// followers has let go of its frame, so that their fetches find room.
struct OwnedFrame {
    bytes: BytesMut,
    _held: HeldMemory,
}

impl AsRef<[u8]> for OwnedFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads frames from a socket.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    reader: BufReader<R>,
    allowed: RangeInclusive<usize>,
    memory: Arc<FrameMemory>,
    stall: Duration,
    first_step_bytes: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames of the lengths `allowed`, giving up when nothing arrives for `stall` within one.
    pub(crate) fn new(reader: R, allowed: RangeInclusive<usize>, memory: Arc<FrameMemory>, stall: Duration) -> Self {
        let reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
        Self { reader, allowed, memory, stall, first_step_bytes: FIRST_STEP_BYTES }
    }

    /// The same, with so much of a frame reserved on the word of its length: what a buffer that doubles has, it copies.
    pub(crate) fn reserving(self, first_step_bytes: usize) -> Self {
        Self { first_step_bytes, ..self }
    }

    /// Waits for the first byte of a frame; false at the end of the stream. Nothing is lost if this is cancelled.
    pub(crate) async fn wait(&mut self) -> io::Result<bool> {
        Ok(!self.reader.fill_buf().await?.is_empty())
    }

    /// Reads a frame, without its length. Its share of the memory is given back with the last reference to its bytes.
    pub(crate) async fn read(&mut self) -> Result<Bytes, FrameError> {
        let mut prefix = [0; 4];
        self.fill(&mut &mut prefix[..], 4).await?;
        let length = i32::from_be_bytes(prefix);
        let bytes = usize::try_from(length)
            .ok()
            .filter(|bytes| self.allowed.contains(bytes))
            .ok_or_else(|| FrameError::Length { length, allowed: self.allowed.clone() })?;
        let mut held = HeldMemory::default();
        let mut frame = BytesMut::new();
        while frame.len() < bytes {
            let step = frame.len().max(self.first_step_bytes).min(bytes - frame.len());
            self.memory.clone().take(&mut held, step).await;
            frame.reserve(step);
            self.fill(&mut frame, step).await?;
        }
        Ok(Bytes::from_owner(OwnedFrame { bytes: frame, _held: held }))
    }

    async fn fill(&mut self, to: &mut impl BufMut, bytes: usize) -> Result<(), FrameError> {
        let mut rest = to.limit(bytes);
        while rest.has_remaining_mut() {
            match timeout(self.stall, self.reader.read_buf(&mut rest)).await {
                Err(_) => return Err(FrameError::Stalled),
                Ok(Ok(0)) => return Err(FrameError::CutOff),
                Ok(done) => done?,
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    const LONG: Duration = Duration::from_secs(60);

    fn reader(bytes: &[u8], limit: usize) -> FrameReader<&[u8]> {
        FrameReader::new(bytes, 8..=limit, Arc::new(FrameMemory::new(1 << 20)), LONG)
    }

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(payload);
        bytes
    }

    #[tokio::test]
    async fn frames_of_all_sizes_come_out_whole() {
        for size in [8usize, 100, READ_AHEAD_BYTES, FIRST_STEP_BYTES, FIRST_STEP_BYTES + 1, 3_000_000] {
            let payload: Vec<u8> = (0..size).map(|at| at as u8).collect();
            let mut stream = framed(&payload);
            stream.extend(framed(b"the next"));
            for first_step_bytes in [FIRST_STEP_BYTES, 1, 2_000_000] {
                let mut reader = reader(&stream, 4_000_000).reserving(first_step_bytes);
                assert!(reader.wait().await.unwrap());
                assert_eq!(reader.read().await.unwrap(), payload, "{size}");
                assert_eq!(reader.read().await.unwrap(), &b"the next"[..]);
                assert!(!reader.wait().await.unwrap());
            }
        }
    }

    #[tokio::test]
    async fn lengths_out_of_range_are_refused_with_a_guess() {
        for (prefix, guess) in [
            (b"GET ", "looks like HTTP"),
            (b"HTTP", "looks like HTTP"),
            (&[0x16, 0x03, 0x01, 0x00], "looks like TLS"),
            (b"SSH-", "looks like SSH"),
            (&[0xff; 4], "-1 bytes, where 8 to 1000 are allowed"),
            (&[0, 0, 0, 7], "7 bytes, where 8 to 1000 are allowed"),
            (&[0, 0, 0x03, 0xe9], "1001 bytes"),
            (&[0; 4], "0 bytes"),
        ] {
            let error = reader(prefix, 1000).read().await.unwrap_err().to_string();
            assert!(error.contains(guess), "{error}");
        }
    }

    #[tokio::test]
    async fn a_length_without_bytes_reserves_little() {
        let (mut client, server) = tokio::io::duplex(1024);
        let memory = Arc::new(FrameMemory::new(200 << 20));
        let mut reader = FrameReader::new(server, 8..=100 << 20, memory.clone(), LONG);
        client.write_all(&(100u32 << 20).to_be_bytes()).await.unwrap();
        client.write_all(b"a few bytes").await.unwrap();
        let reading = tokio::spawn(async move { reader.read().await.map(|_| ()) });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(memory.free_bytes(), (200 << 20) - FIRST_STEP_BYTES);
        drop(client);
        assert!(matches!(reading.await.unwrap(), Err(FrameError::CutOff)));
        assert_eq!(memory.free_bytes(), 200 << 20);
    }

    #[tokio::test]
    async fn a_stalled_frame_is_given_up() {
        let (mut client, server) = tokio::io::duplex(1024);
        let mut reader =
            FrameReader::new(server, 8..=1000, Arc::new(FrameMemory::new(1 << 20)), Duration::from_millis(20));
        client.write_all(&[0, 0, 0, 100, 1, 2]).await.unwrap();
        assert!(matches!(reader.read().await, Err(FrameError::Stalled)));
    }

    #[tokio::test]
    async fn readers_that_need_more_than_there_is_take_turns() {
        // Four frames of 1 MiB each, memory for one and a half: all of them get through.
        let memory = Arc::new(FrameMemory::new(1536 << 10));
        let stream = framed(&vec![7; 1 << 20]);
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (memory, stream) = (memory.clone(), stream.clone());
                tokio::spawn(async move {
                    let mut reader = FrameReader::new(&stream[..], 8..=2 << 20, memory, LONG);
                    let frame = reader.read().await.unwrap();
                    let part = frame.slice(1..3);
                    drop(frame);
                    tokio::task::yield_now().await;
                    part.len()
                })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 2);
        }
        assert_eq!(memory.free_bytes(), 1536 << 10);
    }
}
