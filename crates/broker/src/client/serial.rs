//! A connection for one request at a time, which whoever asks serves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use kafka_protocol::messages::ApiVersionsRequest;
use kafka_protocol::protocol::{Request, StrBytes};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::{
    ClientError, Offered, RESPONSE_BYTES_MAX, RESPONSE_BYTES_MIN, api_of, common_version, decode, encode_body,
    encode_frame, offered_by, offers, open, versions_asked,
};
use crate::net::frame::{FrameMemory, FrameReader};

/// A connection to one broker that has one request in flight at most.
///
/// It has no task of its own, so a request wakes nobody on this side but whoever waits for its answer: of a client that only
/// ever waits, this is the cheaper one.
pub struct SerialConnection {
    address: String,
    client_id: StrBytes,
    timeout: Duration,
    next_correlation: i32,
    frames: FrameReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    offered: Offered,
    /// A request was given up in the middle: the next answer would be taken for another's.
    broken: bool,
}

impl fmt::Debug for SerialConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SerialConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl SerialConnection {
    /// Connects to `HOST:PORT` and negotiates versions. `timeout` bounds this, and the wait for each answer.
    ///
    /// # Errors
    /// If no connection comes about, or no broker answers there.
    pub async fn connect(address: &str, client_id: &str, timeout: Duration) -> Result<Self, ClientError> {
        let (reader, writer) = open(address, timeout).await?.into_split();
        let unlimited = Arc::new(FrameMemory::new(usize::MAX));
        let mut connection = Self {
            address: address.to_owned(),
            client_id: StrBytes::from_string(client_id.to_owned()),
            timeout,
            next_correlation: 1,
            frames: FrameReader::new(reader, RESPONSE_BYTES_MIN..=RESPONSE_BYTES_MAX, unlimited, timeout),
            writer,
            offered: Offered::new(),
            broken: false,
        };
        let answer = connection.answer_to(&versions_asked(), 3).await?;
        connection.offered = match offered_by(answer)? {
            Some(offered) => offered,
            None => {
                let answer = connection.answer_to(&ApiVersionsRequest::default(), 0).await?;
                offers(&decode::<ApiVersionsRequest>(answer, 0)?)?
            }
        };
        Ok(connection)
    }

    /// The highest version of a request that both sides speak, but none above `most`.
    ///
    /// # Errors
    /// If there is none.
    pub fn version_up_to<R: Request>(&self, most: i16) -> Result<i16, ClientError> {
        common_version::<R>(&self.offered, most)
    }

    /// Sends a request in the highest common version and waits for the answer.
    ///
    /// # Errors
    /// If there is no answer, or none that can be read. After that, and if the wait was given up, the connection is closed.
    pub async fn send<R: Request>(&mut self, request: &R) -> Result<R::Response, ClientError> {
        let version = self.version_up_to::<R>(i16::MAX)?;
        self.send_version(request, version).await
    }

    /// Sends a request in this version and waits for the answer.
    ///
    /// # Errors
    /// As [`SerialConnection::send`].
    pub async fn send_version<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response, ClientError> {
        let answer = self.answer_to(request, version).await?;
        decode::<R>(answer, version)
    }

    /// What follows the correlation id in the answer.
    async fn answer_to<R: Request>(&mut self, request: &R, version: i16) -> Result<Bytes, ClientError> {
        if self.broken {
            return Err(ClientError::Closed { reason: "it failed before".into() });
        }
        let body = encode_body(request, version)?;
        let correlation = self.next_correlation;
        self.next_correlation = correlation.wrapping_add(1);
        let frame = encode_frame::<R>(&self.client_id, correlation, version, &body)?;
        self.broken = true;
        let timed_out = ClientError::TimedOut { api: api_of::<R>(), after: self.timeout };
        let exchanged = tokio::time::timeout(self.timeout, exchange(&mut self.frames, &mut self.writer, &frame)).await;
        let mut answer = exchanged.map_err(|_| timed_out)?.map_err(|reason| closed(&reason))?;
        match answer.try_get_i32() {
            Ok(told) if told == correlation => {
                self.broken = false;
                Ok(answer)
            }
            told => Err(closed(&format!("an answer to request {told:?}, where {correlation} was next"))),
        }
    }
}

async fn exchange(
    frames: &mut FrameReader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
    frame: &[u8],
) -> Result<Bytes, String> {
    writer.write_all(frame).await.map_err(|error| format!("cannot write: {error}"))?;
    match frames.wait().await {
        Ok(true) => frames.read().await.map_err(|error| format!("cannot read: {error}")),
        Ok(false) => Err("the broker closed it".to_owned()),
        Err(error) => Err(format!("cannot read: {error}")),
    }
}

fn closed(reason: &str) -> ClientError {
    ClientError::Closed { reason: reason.into() }
}
