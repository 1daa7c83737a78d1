//! A plain, blocking Kafka client: one request, one answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

/// The largest answer that a test may expect.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    correlation_id: i32,
}

impl Client {
    /// Connects; an answer that takes longer than ten seconds is an error.
    pub fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        Self::connect_within(address, Duration::from_secs(10))
    }

    /// Connects; whatever takes longer than `limit` is an error.
    pub fn connect_within(address: SocketAddr, limit: Duration) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect_timeout(&address, limit).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, correlation_id: 0 })
    }

    /// Sends a request and waits for its answer, which must be of the same version, without a byte over.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> anyhow::Result<R::Response> {
        self.correlation_id += 1;
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation_id)
            .with_client_id(Some(StrBytes::from_static_str("highwater-tests")));
        let mut frame = BytesMut::new();
        header.encode(&mut frame, R::header_version(version))?;
        request.encode(&mut frame, version)?;
        let length = i32::try_from(frame.len()).context("the request is too long")?;
        self.stream.write_all(&length.to_be_bytes())?;
        self.stream.write_all(&frame)?;
        let mut answer = self.read_frame()?;
        let header = ResponseHeader::decode(&mut answer, R::Response::header_version(version))?;
        ensure!(header.correlation_id == self.correlation_id, "the answer is to request {}", header.correlation_id);
        let response = R::Response::decode(&mut answer, version)?;
        ensure!(!answer.has_remaining(), "{} bytes are left of the answer", answer.remaining());
        Ok(response)
    }

    /// The next frame's content.
    fn read_frame(&mut self) -> anyhow::Result<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).context("no answer")?;
        let length = usize::try_from(i32::from_be_bytes(length)).context("the answer's length is negative")?;
        ensure!(length <= ANSWER_BYTES_MAX, "the answer has {length} bytes");
        let mut frame = vec![0; length];
        self.stream.read_exact(&mut frame).context("the answer is cut off")?;
        Ok(frame.into())
    }
}
