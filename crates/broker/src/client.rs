//! A small Kafka client: one connection, versions negotiated, requests pipelined.
//!
//! It speaks the ordinary protocol, so it works against this broker and against Kafka. Followers fetch with it, and so
//! do the commands.
//!
//! ```no_run
//! # async fn example() -> Result<(), highwater_broker::client::ClientError> {
//! use std::time::Duration;
//! use highwater_broker::client::Connection;
//! use kafka_protocol::messages::MetadataRequest;
//!
//! let connection = Connection::connect("127.0.0.1:9092", "example", Duration::from_secs(5)).await?;
//! let metadata = connection.send(&MetadataRequest::default().with_topics(None)).await?;
//! println!("{} brokers", metadata.brokers.len());
//! # Ok(())
//! # }
//! ```

mod serial;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes, VersionRange};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::api::{ErrorCode, supported};
use crate::net::frame::{FrameMemory, FrameReader};
use crate::wire;

pub use serial::SerialConnection;

/// The least a response can be: the correlation id.
const RESPONSE_BYTES_MIN: usize = 4;

/// The largest response taken, unless another bound is given: as much as the largest request a broker takes by default, and
/// the records of a full Fetch response.
const RESPONSE_BYTES_MAX: usize = 128 << 20;

/// Room for so much of a response is made at once: all of an ordinary Fetch response. It is a broker that we chose who says how
/// long it is, and room that nothing is written to takes no memory.
const RESERVED_BYTES: usize = 2 << 20;

/// Why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection came about.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where to.
        address: String,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// Nothing came back in time. The request may still be carried out.
    #[error("no answer to {api:?} within {after:?}")]
    TimedOut {
        /// What was asked.
        api: ApiKey,
        /// How long was waited.
        after: Duration,
    },
    /// The connection is gone; requests in flight may or may not have been carried out.
    #[error("the connection is closed: {reason}")]
    Closed {
        /// Who closed it and why.
        reason: Arc<str>,
    },
    /// There is no version of the API that both sides speak.
    #[error("no common version of {api:?}: the broker offers {theirs}")]
    NoCommonVersion {
        /// The API.
        api: ApiKey,
        /// What it offers.
        theirs: String,
    },
    /// The request cannot be written in this version.
    #[error("{api:?} version {version} cannot be encoded: {problem}")]
    Encode {
        /// The API.
        api: ApiKey,
        /// The version.
        version: i16,
        /// Why.
        problem: String,
    },
    /// The answer is not what the protocol says it should be.
    #[error("a malformed answer to {api:?} version {version}: {problem}")]
    Malformed {
        /// The API.
        api: ApiKey,
        /// The version.
        version: i16,
        /// What is wrong with it.
        problem: String,
    },
    /// The broker answered the negotiation with an error.
    #[error("version negotiation failed: {0}")]
    Refused(ErrorCode),
}

/// A connection to one broker. Cheap to clone; closed when the last clone is dropped.
///
/// Requests go out in the order of the calls and are answered in that order. The number in flight is the caller's to
/// bound.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
}

struct Link {
    address: String,
    client_id: StrBytes,
    timeout: Duration,
    next_correlation: AtomicI32,
    /// Held while a correlation id is drawn and its request queued, so that both have one order.
    queue: Mutex<mpsc::UnboundedSender<Outgoing>>,
    offered: Offered,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("address", &self.link.address).finish_non_exhaustive()
    }
}

/// A request on its way, and who waits for its answer, if there is to be one.
struct Outgoing {
    frame: Bytes,
    waiting: Option<Waiting>,
}

struct Waiting {
    correlation: i32,
    answer: oneshot::Sender<Result<Bytes, ClientError>>,
}

impl Connection {
    /// Connects to `HOST:PORT` and negotiates versions. `timeout` bounds this, and the wait for each answer unless
    /// another is given.
    pub async fn connect(address: &str, client_id: &str, timeout: Duration) -> Result<Self, ClientError> {
        Self::connect_taking(RESPONSE_BYTES_MAX, address, client_id, timeout).await
    }

    /// The same, for responses of up to `response_bytes_max` bytes; the connection fails at a larger one. Without this it is
    /// 128 MiB.
    pub async fn connect_taking(
        response_bytes_max: usize,
        address: &str,
        client_id: &str,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let stream = open(address, timeout).await?;
        let (queue, outgoing) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(stream, outgoing, response_bytes_max));
        let mut link = Link {
            address: address.to_owned(),
            client_id: StrBytes::from_string(client_id.to_owned()),
            timeout,
            next_correlation: AtomicI32::new(1),
            queue: Mutex::new(queue),
            offered: BTreeMap::new(),
            task,
        };
        link.offered = negotiate(&link).await?;
        Ok(Self { link: Arc::new(link) })
    }

    /// Whether the other is a clone of this one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.link, &other.link)
    }

    /// The address it was connected to.
    pub fn address(&self) -> &str {
        &self.link.address
    }

    /// What the broker offers of an API.
    pub fn offered(&self, api: ApiKey) -> Option<VersionRange> {
        self.link.offered.get(&(api as i16)).copied()
    }

    /// The highest version of a request that both sides speak.
    pub fn version<R: Request>(&self) -> Result<i16, ClientError> {
        self.version_up_to::<R>(i16::MAX)
    }

    /// The same, but none above `most`: Produce and Fetch name topics by id from version 13 on, for one.
    pub fn version_up_to<R: Request>(&self, most: i16) -> Result<i16, ClientError> {
        common_version::<R>(&self.link.offered, most)
    }

    /// Sends a request in the highest common version and waits for the answer.
    pub async fn send<R: Request>(&self, request: &R) -> Result<R::Response, ClientError> {
        self.call(request, self.version::<R>()?).await
    }

    /// Sends a request in this version and waits for the answer.
    pub async fn send_version<R: Request>(&self, request: &R, version: i16) -> Result<R::Response, ClientError> {
        self.call(request, version).await
    }

    /// Sends a request at once and returns a future for its answer: several may be in flight.
    pub fn call<R: Request>(
        &self,
        request: &R,
        version: i16,
    ) -> impl Future<Output = Result<R::Response, ClientError>> + Send + use<R> {
        self.call_within(request, version, self.link.timeout)
    }

    /// The same with its own patience: a long-polling Fetch is waited for longer than its own limit.
    pub fn call_within<R: Request>(
        &self,
        request: &R,
        version: i16,
        patience: Duration,
    ) -> impl Future<Output = Result<R::Response, ClientError>> + Send + use<R> {
        let answer = self.link.submit(request, version);
        // Whoever waits for an answer uses the connection, whatever becomes of this handle.
        let link = self.link.clone();
        async move {
            let answer = await_answer::<R>(answer?, patience).await?;
            drop(link);
            decode::<R>(answer, version)
        }
    }

    /// Sends a request that has no answer: Produce with acks=0.
    pub fn tell<R: Request>(&self, request: &R, version: i16) -> Result<(), ClientError> {
        self.link.queue(request, version, |_| None)
    }
}

impl Link {
    fn submit<R: Request>(
        &self,
        request: &R,
        version: i16,
    ) -> Result<oneshot::Receiver<Result<Bytes, ClientError>>, ClientError> {
        let (answer, receiver) = oneshot::channel();
        self.queue(request, version, |correlation| Some(Waiting { correlation, answer }))?;
        Ok(receiver)
    }

    fn queue<R: Request>(
        &self,
        request: &R,
        version: i16,
        waiting: impl FnOnce(i32) -> Option<Waiting>,
    ) -> Result<(), ClientError> {
        let body = encode_body(request, version)?;
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let correlation = self.next_correlation.fetch_add(1, Ordering::Relaxed);
        let frame = encode_frame::<R>(&self.client_id, correlation, version, &body)?;
        queue
            .send(Outgoing { frame, waiting: waiting(correlation) })
            .map_err(|_| ClientError::Closed { reason: "it failed before".into() })
    }
}

async fn open(address: &str, timeout: Duration) -> Result<TcpStream, ClientError> {
    let refused = |source| ClientError::Connect { address: address.to_owned(), source: Arc::new(source) };
    let stream = tokio::time::timeout(timeout, TcpStream::connect(address))
        .await
        .map_err(|_| refused(io::Error::from(io::ErrorKind::TimedOut)))?
        .map_err(refused)?;
    // Requests are written whole, so waiting to join small ones only delays them.
    stream.set_nodelay(true).map_err(refused)?;
    Ok(stream)
}

/// What a broker offers, by the key of the API.
type Offered = BTreeMap<i16, VersionRange>;

fn common_version<R: Request>(offered: &Offered, most: i16) -> Result<i16, ClientError> {
    let api = api_of::<R>();
    let theirs = offered.get(&R::KEY).copied();
    let ours = supported(api).map(|ours| VersionRange { min: ours.min, max: ours.max.min(most) });
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if !ours.intersect(&theirs).is_empty() => Ok(ours.intersect(&theirs).max),
        _ => Err(ClientError::NoCommonVersion {
            api,
            theirs: theirs.map_or_else(|| "nothing".to_owned(), |theirs| theirs.to_string()),
        }),
    }
}

fn api_of<R: Request>() -> ApiKey {
    ApiKey::try_from(R::KEY).unwrap_or_else(|()| unreachable!("requests of the protocol crate have known keys"))
}

fn encode_body<R: Request>(request: &R, version: i16) -> Result<BytesMut, ClientError> {
    let mut body = BytesMut::new();
    request.encode(&mut body, version).map_err(|error| encode_error::<R>(version, &error))?;
    Ok(body)
}

fn encode_error<R: Request>(version: i16, error: &impl fmt::Display) -> ClientError {
    ClientError::Encode { api: api_of::<R>(), version, problem: error.to_string() }
}

fn encode_frame<R: Request>(
    client_id: &StrBytes,
    correlation: i32,
    version: i16,
    body: &[u8],
) -> Result<Bytes, ClientError> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(client_id.clone()));
    let mut frame = BytesMut::with_capacity(body.len() + client_id.len() + 32);
    frame.put_i32(0);
    header.encode(&mut frame, R::header_version(version)).map_err(|error| encode_error::<R>(version, &error))?;
    frame.put_slice(body);
    let length = i32::try_from(frame.len() - 4).map_err(|error| encode_error::<R>(version, &error))?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame.freeze())
}

async fn await_answer<R: Request>(
    answer: oneshot::Receiver<Result<Bytes, ClientError>>,
    patience: Duration,
) -> Result<Bytes, ClientError> {
    match tokio::time::timeout(patience, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(ClientError::Closed { reason: "it was dropped".into() }),
        Err(_) => Err(ClientError::TimedOut { api: api_of::<R>(), after: patience }),
    }
}

/// Reads what follows the correlation id.
fn decode<R: Request>(mut frame: Bytes, version: i16) -> Result<R::Response, ClientError> {
    let api = api_of::<R>();
    let malformed = |problem: String| ClientError::Malformed { api, version, problem };
    if R::Response::header_version(version) >= 1 {
        let tags = wire::tag_section_bytes(&frame).map_err(|error| malformed(error.to_string()))?;
        frame.advance(tags);
    }
    wire::check_response(api, version, &frame).map_err(|error| malformed(error.to_string()))?;
    R::Response::decode(&mut frame, version).map_err(|error| malformed(error.to_string()))
}

/// Asks for the offered versions: version 3, and where that is too new, the version 0 that everybody speaks.
async fn negotiate(link: &Link) -> Result<Offered, ClientError> {
    let answer = await_answer::<ApiVersionsRequest>(link.submit(&versions_asked(), 3)?, link.timeout).await?;
    if let Some(offered) = offered_by(answer)? {
        return Ok(offered);
    }
    let answer = link.submit(&ApiVersionsRequest::default(), 0)?;
    offers(&decode::<ApiVersionsRequest>(await_answer::<ApiVersionsRequest>(answer, link.timeout).await?, 0)?)
}

/// What is asked in version 3.
fn versions_asked() -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("highwater"))
        .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")))
}

/// What the answer to version 3 says; `None` if that version is too new.
fn offered_by(answer: Bytes) -> Result<Option<Offered>, ClientError> {
    let too_new =
        answer.first_chunk().is_some_and(|code| i16::from_be_bytes(*code) == ErrorCode::UnsupportedVersion.number());
    if too_new {
        return Ok(None);
    }
    offers(&decode::<ApiVersionsRequest>(answer, 3)?).map(Some)
}

fn offers(response: &ApiVersionsResponse) -> Result<Offered, ClientError> {
    match ErrorCode::from_number(response.error_code).unwrap_or(ErrorCode::UnknownServerError) {
        ErrorCode::None => {}
        code => return Err(ClientError::Refused(code)),
    }
    let offered = response.api_keys.iter();
    Ok(offered.map(|api| (api.api_key, VersionRange { min: api.min_version, max: api.max_version })).collect())
}

/// Serves the connection until it fails or its owner goes, then tells everybody who still waits.
async fn run(stream: TcpStream, mut outgoing: mpsc::UnboundedReceiver<Outgoing>, response_bytes_max: usize) {
    let (reader, writer) = stream.into_split();
    let waiting = Mutex::new(VecDeque::new());
    let reason = tokio::select! {
        error = write_all(writer, &mut outgoing, &waiting) => error,
        error = read_all(reader, &waiting, response_bytes_max) => error,
    };
    outgoing.close();
    let mut left: Vec<Waiting> = waiting.into_inner().unwrap_or_else(PoisonError::into_inner).into();
    while let Ok(request) = outgoing.try_recv() {
        left.extend(request.waiting);
    }
    let reason: Arc<str> = reason.into();
    for waiting in left {
        // Whoever no longer waits does not need to know.
        let _ = waiting.answer.send(Err(ClientError::Closed { reason: reason.clone() }));
    }
}

async fn write_all(
    mut writer: OwnedWriteHalf,
    outgoing: &mut mpsc::UnboundedReceiver<Outgoing>,
    waiting: &Mutex<VecDeque<Waiting>>,
) -> String {
    while let Some(request) = outgoing.recv().await {
        // Before the bytes go out, or the answer could come before anybody is known to wait for it.
        waiting.lock().unwrap_or_else(PoisonError::into_inner).extend(request.waiting);
        if let Err(error) = writer.write_all(&request.frame).await {
            return format!("cannot write: {error}");
        }
    }
    "it is no longer used".to_owned()
}

async fn read_all(reader: OwnedReadHalf, waiting: &Mutex<VecDeque<Waiting>>, response_bytes_max: usize) -> String {
    // A response may take as long as it likes between its bytes: patience is with whoever waits for it.
    let unlimited = Arc::new(FrameMemory::new(usize::MAX));
    let mut frames =
        FrameReader::new(reader, RESPONSE_BYTES_MIN..=response_bytes_max, unlimited, Duration::from_secs(600))
            .reserving(RESERVED_BYTES);
    loop {
        match frames.wait().await {
            Ok(true) => {}
            Ok(false) => return "the broker closed it".to_owned(),
            Err(error) => return format!("cannot read: {error}"),
        }
        let mut frame = match frames.read().await {
            Ok(read) => read,
            Err(error) => return format!("cannot read: {error}"),
        };
        let Ok(correlation) = frame.try_get_i32() else { return "an answer without an id".to_owned() };
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match next {
            Some(waiting) if waiting.correlation == correlation => {
                let _ = waiting.answer.send(Ok(frame));
            }
            Some(waiting) => {
                let expected = waiting.correlation;
                let reason = format!("an answer to request {correlation}, where {expected} was next");
                let _ = waiting.answer.send(Err(ClientError::Closed { reason: reason.as_str().into() }));
                return reason;
            }
            None => return format!("an answer to request {correlation}, which nobody sent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::api_versions_response::ApiVersion;
    use kafka_protocol::messages::{MetadataRequest, MetadataResponse, ProduceRequest};
    use tokio::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// What a fake broker does with one request: the bytes after the correlation id, or nothing.
    type Answer = fn(api: i16, version: i16) -> Option<Vec<u8>>;

    /// A broker that answers each request in order, as told. Returns its address and closes after `requests` of them.
    async fn broker(requests: usize, answer: Answer) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.into_split();
            let memory = Arc::new(FrameMemory::new(1 << 20));
            let mut frames = FrameReader::new(reader, 8..=1 << 20, memory, PATIENCE);
            for _ in 0..requests {
                let mut frame = frames.read().await.unwrap();
                let (api, version, correlation) = (frame.get_i16(), frame.get_i16(), frame.get_i32());
                if let Some(body) = answer(api, version) {
                    let mut response = i32::try_from(body.len() + 4).unwrap().to_be_bytes().to_vec();
                    response.extend(correlation.to_be_bytes());
                    response.extend(body);
                    writer.write_all(&response).await.unwrap();
                }
            }
        });
        address
    }

    fn encoded(message: &impl Encodable, version: i16) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes, version).unwrap();
        bytes.to_vec()
    }

    fn offer(version: i16, error: ErrorCode) -> Vec<u8> {
        let one = |key, min, max| ApiVersion::default().with_api_key(key).with_min_version(min).with_max_version(max);
        let keys = vec![one(3, 0, 7), one(0, 14, 20), one(18, 0, 3)];
        encoded(&ApiVersionsResponse::default().with_error_code(error.into()).with_api_keys(keys), version)
    }

    fn metadata(version: i16, brokers: usize) -> Vec<u8> {
        let broker = kafka_protocol::messages::metadata_response::MetadataResponseBroker::default();
        encoded(&MetadataResponse::default().with_brokers(vec![broker; brokers]), version)
    }

    #[tokio::test]
    async fn versions_are_negotiated_and_requests_pipelined() {
        let address = broker(4, |api, version| match api {
            18 => Some(offer(version, ErrorCode::None)),
            _ => Some(metadata(version, version as usize)),
        })
        .await;
        let connection = Connection::connect(&address, "test", PATIENCE).await.unwrap();
        assert_eq!(connection.version::<MetadataRequest>().unwrap(), 7);
        assert_eq!(connection.version_up_to::<MetadataRequest>(4).unwrap(), 4);
        let error = connection.version::<ProduceRequest>().unwrap_err();
        assert_eq!(error.to_string(), "no common version of Produce: the broker offers 14..20");
        // Three in flight, asked for in another order than they were sent in.
        let request = MetadataRequest::default();
        let (one, two, seven) = (connection.call(&request, 1), connection.call(&request, 2), connection.send(&request));
        assert_eq!(seven.await.unwrap().brokers.len(), 7);
        assert_eq!(two.await.unwrap().brokers.len(), 2);
        assert_eq!(one.await.unwrap().brokers.len(), 1);
    }

    #[tokio::test]
    async fn an_old_broker_is_asked_again_in_version_0() {
        let address = broker(2, |_, version| {
            Some(if version == 3 { offer(0, ErrorCode::UnsupportedVersion) } else { offer(0, ErrorCode::None) })
        })
        .await;
        let connection = Connection::connect(&address, "test", PATIENCE).await.unwrap();
        assert_eq!(connection.offered(ApiKey::Metadata), Some(VersionRange { min: 0, max: 7 }));
        assert_eq!(connection.offered(ApiKey::Fetch), None);
    }

    #[tokio::test]
    async fn a_closed_connection_fails_all_that_wait() {
        let address = broker(2, |api, version| (api == 18).then(|| offer(version, ErrorCode::None))).await;
        let connection = Connection::connect(&address, "test", PATIENCE).await.unwrap();
        let request = MetadataRequest::default();
        let (first, second) = (connection.call(&request, 1), connection.call(&request, 1));
        for answer in [first.await, second.await, connection.send_version(&request, 1).await] {
            assert!(matches!(answer, Err(ClientError::Closed { .. })), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn silence_ends_in_a_timeout() {
        let address = broker(3, |api, version| (api == 18).then(|| offer(version, ErrorCode::None))).await;
        let connection = Connection::connect(&address, "test", PATIENCE).await.unwrap();
        let answer = connection.call_within(&MetadataRequest::default(), 1, Duration::from_millis(20)).await;
        assert!(matches!(answer, Err(ClientError::TimedOut { api: ApiKey::Metadata, .. })), "{answer:?}");
    }

    #[tokio::test]
    async fn a_serial_connection_asks_one_thing_after_the_other() {
        let address = broker(4, |api, version| match (api, version) {
            (18, 3) => Some(offer(0, ErrorCode::UnsupportedVersion)),
            (18, _) => Some(offer(0, ErrorCode::None)),
            _ => Some(metadata(version, version as usize)),
        })
        .await;
        let mut connection = SerialConnection::connect(&address, "test", PATIENCE).await.unwrap();
        let request = MetadataRequest::default();
        assert_eq!(connection.send(&request).await.unwrap().brokers.len(), 7);
        assert_eq!(connection.send_version(&request, 2).await.unwrap().brokers.len(), 2);
        assert!(matches!(connection.version_up_to::<ProduceRequest>(9), Err(ClientError::NoCommonVersion { .. })));
        let answer = connection.send(&request).await;
        assert!(matches!(answer, Err(ClientError::Closed { .. })), "{answer:?}");
    }

    #[tokio::test]
    async fn a_serial_connection_takes_no_late_answer_for_another() {
        let address = broker(3, |api, version| (api == 18).then(|| offer(version, ErrorCode::None))).await;
        let mut connection = SerialConnection::connect(&address, "test", PATIENCE).await.unwrap();
        let request = MetadataRequest::default();
        // Given up at once: the request may be on its way, and its answer would come first.
        let given_up = tokio::time::timeout(Duration::ZERO, connection.send_version(&request, 1)).await;
        assert!(given_up.is_err());
        let answer = connection.send_version(&request, 1).await;
        assert!(matches!(answer, Err(ClientError::Closed { .. })), "{answer:?}");
    }

    #[tokio::test]
    async fn hostile_answers_are_refused() {
        let address = broker(2, |api, version| match api {
            18 => Some(offer(version, ErrorCode::None)),
            // Throttle time, then 2^31-1 brokers.
            _ => Some(vec![0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]),
        })
        .await;
        let connection = Connection::connect(&address, "test", PATIENCE).await.unwrap();
        let answer = connection.send_version(&MetadataRequest::default(), 7).await;
        assert!(answer.unwrap_err().to_string().contains("an array longer than the message"));
    }

    #[tokio::test]
    async fn a_response_beyond_the_bound_ends_the_connection() {
        let answer: Answer =
            |api, version| Some(if api == 18 { offer(version, ErrorCode::None) } else { metadata(version, 20) });
        let frame_bytes = metadata(7, 20).len() + 4;
        for (bound, taken) in [(frame_bytes, true), (frame_bytes - 1, false)] {
            let address = broker(2, answer).await;
            let connection = Connection::connect_taking(bound, &address, "test", PATIENCE).await.unwrap();
            match connection.send_version(&MetadataRequest::default(), 7).await {
                Ok(metadata) => assert!(taken && metadata.brokers.len() == 20),
                Err(ClientError::Closed { reason }) => {
                    assert!(!taken && reason.contains(&format!("a frame of {frame_bytes} bytes")), "{reason}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn nobody_listening_names_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = Connection::connect(&address, "test", PATIENCE).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot connect to {address}: ")), "{error}");
    }
}
