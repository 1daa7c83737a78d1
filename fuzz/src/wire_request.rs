//! A connection to a broker: requests of any API and version, in order, spoilt, or any bytes at all.
//!
//! What must hold: nothing panics, in the connection or behind it; every answer is one to a request that was sent, in their
//! order, and decodes to its last byte in the version that was asked; the broker answers the next client as if nothing had been.
//!
//! The broker is real, with its threads and files, and lives from input to input: it is started again from nothing after
//! [`LIFETIME`] of them, so that what they leave behind stays small.

mod asked;
mod values;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use highwater_broker::Broker;
use highwater_broker::api::SUPPORTED;
use highwater_broker::config::BrokerConfig;
use highwater_tests::messages;
use highwater_tests::requests::{Api, apis, fix_length};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::input::Input;
use asked::{Asked, requests};
use values::Drawn;

/// Inputs that one broker serves.
const LIFETIME: usize = 3_000;

/// Frames of one input.
const FRAMES_MAX: usize = 6;

/// How long an answer is waited for. Some requests wait as long as they say themselves, and those are left.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long the next client may wait for its answer before the broker is taken for stuck.
const STUCK: Duration = Duration::from_secs(15);

/// What a pipe holds.
const PIPE_BYTES: usize = 1 << 20;

/// Topics that are there, by their names and partitions.
const TOPICS: &[(&str, i32)] = &[("alpha", 1), ("beta", 3)];

/// An input that asks for more partitions than this is left out: making them is slow, and no secret.
const PARTITIONS_MAX: u32 = 64;

/// Whether a thread that is not the caller's panicked: those of the broker catch it themselves.
static PANICKED: AtomicBool = AtomicBool::new(false);

struct World {
    runtime: Runtime,
    broker: Broker,
    topic_ids: Vec<[u8; 16]>,
    inputs: usize,
    _directory: TempDir,
}

/// The target's body.
pub fn run(data: &[u8]) {
    static WORLD: Mutex<Option<World>> = Mutex::new(None);
    let mut slot = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.as_ref().is_none_or(|world| world.inputs >= LIFETIME) {
        // The old one first: it stops without waiting for anything.
        *slot = None;
        *slot = Some(World::start());
    }
    let mut world = slot.take().expect("it was started");
    world.inputs += 1;
    let frames = frames(&mut Input::new(data), &world.topic_ids);
    world.runtime.block_on(converse(&world.broker, &frames));
    assert!(!PANICKED.load(Ordering::Relaxed), "a thread of the broker panicked");
    *slot = Some(world);
}

impl World {
    fn start() -> Self {
        watch_for_panics();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hw-worker")
            .enable_all()
            .build()
            .expect("a runtime");
        // In memory where that is to be had: topics are synced when they are made.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let mut config = BrokerConfig::default();
        config.data_dir = directory.path().join("data");
        "127.0.0.1".clone_into(&mut config.listen.host);
        config.listen.port = 0;
        config.auto_create_topics = false;
        config.offsets_topic_partitions = 2;
        config.transactions_topic_partitions = 2;
        config.request_bytes_max = 1 << 20;
        let broker = runtime.block_on(Broker::start_embedded(config)).expect("a broker");
        let topic_ids =
            TOPICS.iter().map(|&(name, partitions)| runtime.block_on(make(&broker, name, partitions))).collect();
        Self { runtime, broker, topic_ids, inputs: 0, _directory: directory }
    }
}

/// Makes a topic by a request like any other.
async fn make(broker: &Broker, name: &str, partitions: i32) -> [u8; 16] {
    let mut request = vec![0; 4];
    // CreateTopics 5: correlation id 1, no client id, no tags; one topic without assignments and configs.
    request.extend([0, 19, 0, 5, 0, 0, 0, 1, 0xff, 0xff, 0, 2, u8::try_from(name.len() + 1).expect("a short name")]);
    request.extend(name.as_bytes());
    request.extend(partitions.to_be_bytes());
    request.extend([0, 1, 1, 1, 0]);
    request.extend([0, 0, 0x27, 0x10, 0, 0]);
    fix_length(&mut request);
    ask(broker, &request).await.expect("CreateTopics is answered");
    for _ in 0..1000 {
        if let Some(topic) = broker.image().topic(name) {
            return topic.id.0;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{name} does not appear");
}

/// One request and its answer.
async fn ask(broker: &Broker, request: &[u8]) -> Option<Bytes> {
    let (mut client, server) = duplex(PIPE_BYTES);
    let (reader, writer) = tokio::io::split(server);
    let talk = async {
        client.write_all(request).await.ok()?;
        read_frame(&mut client).await
    };
    tokio::select! {
        biased;
        answer = talk => answer,
        _ = broker.serve(reader, writer) => None,
    }
}

/// The bytes of a connection: whole frames but for the last.
fn frames(input: &mut Input<'_>, topic_ids: &[[u8; 16]]) -> Vec<Vec<u8>> {
    static APIS: OnceLock<Vec<Api>> = OnceLock::new();
    let apis = APIS.get_or_init(apis);
    let mode = input.below(4);
    if mode == 0 {
        return vec![input.rest().to_vec()];
    }
    let mut frames = Vec::new();
    while !input.is_empty() && frames.len() < FRAMES_MAX {
        // By its number, so that a seed goes on to mean the same when others are served as well.
        let key = input.byte();
        let named = SUPPORTED.iter().find(|supported| supported.api as i16 == i16::from(key));
        let supported = named.unwrap_or(&SUPPORTED[usize::from(key) % SUPPORTED.len()]);
        let versions = usize::try_from(supported.max - supported.advertised_min).expect("a small number") + 1;
        let version = supported.advertised_min + i16::try_from(input.below(versions)).expect("a small number");
        let correlation_id = i32::try_from(frames.len()).expect("a small number");
        let api = apis.iter().find(|api| api.key == supported.api as i16);
        let api = api.unwrap_or_else(|| panic!("requests.txt has no {:?}", supported.api));
        if mode == 1 {
            // Behind the header whatever comes.
            let mut frame = vec![0; 4];
            frame.extend(api.key.to_be_bytes());
            frame.extend(version.to_be_bytes());
            frame.extend(correlation_id.to_be_bytes());
            frame.extend([0xff, 0xff]);
            if api.is_flexible(version) {
                frame.push(0);
            }
            let length = input.below(200);
            frame.extend(input.take(length));
            fix_length(&mut frame);
            frames.push(frame);
            continue;
        }
        let mut values = Drawn { input, topic_ids };
        let mut frame = api.frame(version, correlation_id, "fuzz", &mut values).bytes;
        if mode == 3 {
            for _ in 0..1 + input.below(3) {
                let at = 4 + input.below(frame.len() - 4);
                frame[at] = input.byte();
            }
        }
        frames.push(frame);
    }
    frames
}

/// Sends it all, and looks at what comes back.
async fn converse(broker: &Broker, frames: &[Vec<u8>]) {
    let sent = frames.concat();
    let mut asked = requests(&sent);
    if asked.iter().any(|request| request.partitions() > PARTITIONS_MAX) {
        return;
    }
    let (mut client, server) = duplex(PIPE_BYTES);
    let (reader, writer) = tokio::io::split(server);
    let talk = async {
        if timeout(PATIENCE, client.write_all(&sent)).await.is_err() {
            return;
        }
        while !asked.is_empty() {
            let Ok(Some(answer)) = timeout(PATIENCE, read_frame(&mut client)).await else { return };
            check(&mut asked, answer);
        }
    };
    tokio::pin!(talk);
    tokio::select! {
        biased;
        () = &mut talk => {}
        // What was answered before the connection was closed is still in the pipe.
        _ = broker.serve(reader, writer) => talk.await,
    }
    // ApiVersions 0, of the next client.
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 9, 0xff, 0xff];
    let answer = timeout(STUCK, ask(broker, &request)).await.expect("the broker answers nobody any more");
    let answer = answer.expect("the next client is served");
    assert_eq!(answer[..6], [0, 0, 0, 9, 0, 0], "its answer");
}

/// An answer belongs to the next request that has one: a Produce that wants none is passed over.
fn check(asked: &mut VecDeque<Asked>, answer: Bytes) {
    let Some(&id) = answer.first_chunk::<4>() else { panic!("an answer of {} bytes", answer.len()) };
    let id = i32::from_be_bytes(id);
    let request = loop {
        let request = asked.pop_front().unwrap_or_else(|| panic!("an answer to request {id}, which was not sent"));
        if request.correlation_id == id {
            break request;
        }
        assert_eq!(request.api, 0, "request {} has no answer", request.correlation_id);
    };
    let served = SUPPORTED
        .iter()
        .find(|supported| supported.api as i16 == request.api)
        .expect("only what is served is answered");
    let version = if (served.min..=served.max).contains(&request.version) {
        request.version
    } else {
        match request.api {
            // Refused in the form that everybody knows.
            18 => 0,
            // Refused in a form that the decoder does not know any more.
            0 => return,
            api => panic!("API {api} is answered in version {}", request.version),
        }
    };
    let body = messages::answer_body(request.api, version, id, answer).expect("the header of an answer");
    if let Err(error) = messages::answer_text(request.api, version, body) {
        panic!("the answer of {:?} version {version} does not decode: {error:#}", served.api);
    }
}

/// The next frame without its length; nothing at the end of the connection.
async fn read_frame(client: &mut DuplexStream) -> Option<Bytes> {
    let length = client.read_u32().await.ok()?;
    let length = usize::try_from(length).expect("a small computer");
    assert!(length <= 16 << 20, "an answer of {length} bytes");
    let mut frame = vec![0; length];
    client.read_exact(&mut frame).await.ok()?;
    Some(frame.into())
}

/// Panics of the broker's own threads end in its own hands, so they are noted as they happen.
fn watch_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("hw-")) {
                PANICKED.store(true, Ordering::Relaxed);
            }
            before(panic);
        }));
    });
}
