//! One of the two brokers: a connection, and what came back.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use highwater_tests::messages;

use crate::tree::Tree;
use crate::world::World;

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The largest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What came of a request.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// This answer, as the broker gave it.
    Answered(Tree),
    /// The connection was closed.
    Closed,
    /// Nothing within the time there was.
    Silent,
}

/// A broker that is asked.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    stream: Option<TcpStream>,
    pub(crate) world: World,
}

impl Outcome {
    /// In a word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Answered(_) => "answered",
            Self::Closed => "closed",
            Self::Silent => "silent",
        }
    }
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, started_ms: i64) -> Self {
        Self { address, stream: None, world: World::new(started_ms) }
    }

    /// Sends a frame and waits for what comes of it.
    pub(crate) fn ask(&mut self, api: i16, version: i16, correlation_id: i32, frame: &[u8]) -> anyhow::Result<Outcome> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address).context("cannot connect")?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                stream
            }
        };
        stream.write_all(frame).context("cannot send")?;
        let mut length = [0; 4];
        match stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return Ok(Outcome::Closed);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(Outcome::Silent);
            }
            Err(error) => return Err(error).context("no answer"),
        }
        let length = usize::try_from(i32::from_be_bytes(length)).context("a negative length")?;
        ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes");
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).context("an answer that is cut off")?;
        self.stream = Some(stream);
        let body = messages::answer_body(api, version, correlation_id, Bytes::from(answer))?;
        let text = messages::answer_text(api, version, body).context("the answer does not decode")?;
        Ok(Outcome::Answered(Tree::read(&text)?))
    }

    /// The same answer with what is this broker's own replaced by what both call it, and with its arrays in one order: Kafka
    /// makes most of them out of hash maps.
    pub(crate) fn common(&self, answer: &Tree) -> Tree {
        let mut tree = answer.clone();
        tree.map("", &|path, text| self.world.common(path, text, self.address.port()));
        tree.sort();
        tree
    }
}
