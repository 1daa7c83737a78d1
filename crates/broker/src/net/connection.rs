//! One connection: requests are taken as they come, up to a bound, and answered in their order.
//!
//! Reading and writing are two halves of one task. The reader takes a slot in the queue first, then a frame, so a client
//! that sends without reading is held back by its own socket. An eager call is polled once before the next frame is
//! looked at; whatever it submits is therefore submitted in the order of the requests.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::frame::{FrameError, FrameMemory, FrameReader};
use super::{Answer, Call, Close, ConnectionInfo, Response, Service};

/// The least a request can be: API, version, correlation id.
const REQUEST_BYTES_MIN: usize = 8;

/// Answers that are ready are written together up to so many bytes.
const GATHERED_BYTES: usize = 64 << 10;

/// How many pieces one system call takes.
const SLICES_MAX: usize = 64;

/// How long the answers to a client that stopped sending are still worked on: long enough for a script that shuts down
/// its sending side, while a fetch that was to wait for hours does not outlive its client.
const LINGER: Duration = Duration::from_secs(1);

/// What bounds a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimits {
    /// The largest request.
    pub(crate) frame_bytes_max: usize,
    /// Requests taken and not yet answered.
    pub(crate) in_flight_max: usize,
    /// How long nothing may happen.
    pub(crate) idle_max: Duration,
}

/// How a connection came to its end, if not by the client's leave.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it, or the server is stopping.
    Quiet,
    /// Nothing happened for too long.
    Idle,
    /// It was closed because of what the client sent.
    Closed(Close),
    /// The socket failed.
    Io(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A request whose answer is due.
enum Due {
    Ready(Result<Option<Response>, Close>),
    Coming(Answer),
}

/// Serves one connection to its end. Once `stop` turns true no further request is taken, and the ones taken are
/// answered.
pub(crate) async fn serve<S, R, W>(
    (reader, writer): (R, W),
    info: Arc<ConnectionInfo>,
    service: Arc<S>,
    limits: &ConnectionLimits,
    memory: Arc<FrameMemory>,
    stop: watch::Receiver<bool>,
) -> End
where
    S: Service,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let in_flight = AtomicUsize::new(0);
    let (queue, due) = mpsc::channel(limits.in_flight_max);
    let frames = FrameReader::new(reader, REQUEST_BYTES_MIN..=limits.frame_bytes_max, memory, limits.idle_max);
    let reading = read_all(frames, &info, &service, limits, queue, &in_flight, stop);
    let writing = write_all(writer, due, limits.idle_max, &in_flight);
    tokio::pin!(writing);
    let last = tokio::select! {
        last = reading => last,
        done = &mut writing => return done.err().unwrap_or(End::Quiet),
    };
    let done = match last {
        Ok(Last::Left) => timeout(LINGER, writing).await.unwrap_or(Ok(())),
        Ok(Last::Stopping | Last::Closing) => writing.await,
        Err(end) => Err(end),
    };
    done.err().unwrap_or(End::Quiet)
}

/// Why no further request is taken.
enum Last {
    /// The client sends no more.
    Left,
    /// The server is stopping.
    Stopping,
    /// The last answer closes the connection.
    Closing,
}

async fn read_all<S: Service, R: AsyncRead + Unpin>(
    mut frames: FrameReader<R>,
    info: &Arc<ConnectionInfo>,
    service: &Arc<S>,
    limits: &ConnectionLimits,
    queue: mpsc::Sender<Due>,
    in_flight: &AtomicUsize,
    mut stop: watch::Receiver<bool>,
) -> Result<Last, End> {
    loop {
        // The queue is closed only by the writer's end, which ends this half too.
        let Ok(slot) = queue.reserve().await else { return Ok(Last::Closing) };
        let next = tokio::select! {
            biased;
            _ = stop.wait_for(|&stop| stop) => return Ok(Last::Stopping),
            next = next_frame(&mut frames, limits.idle_max, in_flight) => next?,
        };
        let due = match next {
            None => return Ok(Last::Left),
            Some(Ok(frame)) => {
                let Call { mut answer, eager } = service.call(info, frame);
                let started = if eager { poll_once(&mut answer).await } else { None };
                started.map_or(Due::Coming(answer), Due::Ready)
            }
            // In its place in the order: what came before it is answered first.
            Some(Err(close)) => Due::Ready(Err(close)),
        };
        let is_last = matches!(due, Due::Ready(Err(_)));
        in_flight.fetch_add(1, Ordering::Relaxed);
        slot.send(due);
        if is_last {
            return Ok(Last::Closing);
        }
    }
}

/// The next frame; nothing at the end of the stream; the reason to close if what came is no frame.
async fn next_frame<R: AsyncRead + Unpin>(
    frames: &mut FrameReader<R>,
    idle_max: Duration,
    in_flight: &AtomicUsize,
) -> Result<Option<Result<Bytes, Close>>, End> {
    loop {
        match timeout(idle_max, frames.wait()).await {
            Ok(more) => {
                if !more? {
                    return Ok(None);
                }
                break;
            }
            // A client that waits for an answer is not idle.
            Err(_) if in_flight.load(Ordering::Relaxed) > 0 => {}
            Err(_) => return Err(End::Idle),
        }
    }
    match frames.read().await {
        Ok(frame) => Ok(Some(Ok(frame))),
        Err(FrameError::Io(error)) => Err(End::Io(error)),
        Err(error) => Ok(Some(Err(Close::because(error.to_string())))),
    }
}

async fn write_all<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<Due>,
    stall: Duration,
    in_flight: &AtomicUsize,
) -> Result<(), End> {
    let mut next = None;
    loop {
        let Some(first) = (match next.take() {
            Some(due) => Some(due),
            None => queue.recv().await,
        }) else {
            // So that the client sees an orderly end after its last answer. It may be gone already.
            let _ = writer.shutdown().await;
            return Ok(());
        };
        let mut pieces = VecDeque::new();
        let mut answered = 1;
        let mut close = add(&mut pieces, first.finish().await);
        let mut bytes: usize = pieces.iter().map(Bytes::len).sum();
        while close.is_none() && bytes < GATHERED_BYTES {
            let Ok(due) = queue.try_recv() else { break };
            match due.finish_if_ready().await {
                Ok(answer) => {
                    answered += 1;
                    bytes += answer.as_ref().ok().and_then(Option::as_ref).map_or(0, Response::len);
                    close = add(&mut pieces, answer);
                }
                Err(due) => {
                    next = Some(due);
                    break;
                }
            }
        }
        write_pieces(&mut writer, pieces, stall).await?;
        in_flight.fetch_sub(answered, Ordering::Relaxed);
        if let Some(close) = close {
            return Err(End::Closed(close));
        }
    }
}

fn add(pieces: &mut VecDeque<Bytes>, answer: Result<Option<Response>, Close>) -> Option<Close> {
    match answer {
        Ok(response) => {
            pieces.extend(response.into_iter().flat_map(|response| response.pieces));
            None
        }
        Err(close) => Some(close),
    }
}

impl Due {
    async fn finish(self) -> Result<Option<Response>, Close> {
        match self {
            Self::Ready(answer) => answer,
            Self::Coming(answer) => answer.await,
        }
    }

    async fn finish_if_ready(self) -> Result<Result<Option<Response>, Close>, Self> {
        match self {
            Self::Ready(answer) => Ok(answer),
            Self::Coming(mut answer) => poll_once(&mut answer).await.ok_or(Self::Coming(answer)),
        }
    }
}

/// Polls once and comes back: with the output, or with nothing if there is none yet.
async fn poll_once(answer: &mut Answer) -> Option<Result<Option<Response>, Close>> {
    poll_fn(|context| {
        Poll::Ready(match answer.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Writes all pieces, many to a system call, giving up on a peer that takes nothing for `stall`.
async fn write_pieces<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut pieces: VecDeque<Bytes>,
    stall: Duration,
) -> Result<(), End> {
    while !pieces.is_empty() {
        let slices: Vec<IoSlice<'_>> = pieces.iter().take(SLICES_MAX).map(|piece| IoSlice::new(piece)).collect();
        let written = timeout(stall, writer.write_vectored(&slices)).await.map_err(|_| End::Idle)??;
        if written == 0 {
            return Err(End::Io(io::ErrorKind::WriteZero.into()));
        }
        let mut rest = written;
        while let Some(piece) = pieces.front_mut() {
            if piece.len() > rest {
                piece.advance(rest);
                break;
            }
            rest -= piece.len();
            pieces.pop_front();
        }
    }
    Ok(())
}
