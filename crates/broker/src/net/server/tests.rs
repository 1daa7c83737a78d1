use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::net::{Call, Close, Response};

const PATIENCE: Duration = Duration::from_secs(5);

/// Answers a frame as its first byte says and echoes the rest.
#[derive(Debug, Default)]
struct Echo {
    started: Mutex<Vec<u8>>,
    waiting: AtomicUsize,
    gate: Notify,
}

impl Service for Echo {
    fn call(self: &Arc<Self>, _: &Arc<ConnectionInfo>, frame: Bytes) -> Call {
        let service = self.clone();
        let (kind, mark) = (frame[0], frame[1]);
        let answer = Box::pin(async move {
            service.started.lock().unwrap().push(mark);
            match kind {
                b'c' => return Err(Close::because("asked to")),
                b'n' => return Ok(None),
                b'w' | b'W' => {
                    service.waiting.fetch_add(1, Ordering::SeqCst);
                    service.gate.notified().await;
                }
                b's' => tokio::time::sleep(Duration::from_millis(30)).await,
                _ => {}
            }
            let mut head = BytesMut::new();
            head.put_i32(frame.len() as i32);
            Ok(Some(Response { pieces: vec![head.freeze(), frame] }))
        });
        Call { answer, eager: kind.is_ascii_uppercase() }
    }
}

fn limits() -> ServerLimits {
    ServerLimits {
        connections_max: 100,
        connections_per_ip_max: 100,
        queued_bytes_max: 64 << 20,
        connection: ConnectionLimits { frame_bytes_max: 32 << 20, in_flight_max: 8, idle_max: PATIENCE },
    }
}

async fn start(limits: ServerLimits) -> (Server, SocketAddr, Arc<Echo>) {
    let listener = Listener::bind(&ListenAddress { host: "127.0.0.1".to_owned(), port: 0 }, 16).await.unwrap();
    let (address, service) = (listener.local_addr(), Arc::new(Echo::default()));
    (listener.serve(service.clone(), limits), address, service)
}

fn frame(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut prefix = [0; 4];
    timeout(PATIENCE, stream.read_exact(&mut prefix)).await.expect("an answer").unwrap();
    let mut bytes = vec![0; (&prefix[..]).get_u32() as usize];
    stream.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Whether the server has closed the connection, be it by an end or a reset.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(PATIENCE, stream.read(&mut [0; 1])).await, Ok(Ok(0) | Err(_)))
}

async fn eventually(condition: impl Fn() -> bool) {
    timeout(PATIENCE, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it to come true");
}

#[tokio::test]
async fn answers_come_in_the_order_of_requests() {
    let (server, address, _) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut sent = Vec::new();
    for at in 0..50 {
        let kind = ["s", "e", "E"][at % 3];
        sent.push(format!("{kind}{at:08}"));
    }
    // All in one write; the next connection gets the same byte by byte.
    let all: Vec<u8> = sent.iter().flat_map(|text| frame(text)).collect();
    stream.write_all(&all).await.unwrap();
    for text in &sent {
        assert_eq!(answer(&mut stream).await, *text);
    }
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.set_nodelay(true).unwrap();
    for byte in frame("e bytewise") {
        slow.write_all(&[byte]).await.unwrap();
    }
    assert_eq!(answer(&mut slow).await, "e bytewise");
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn eager_calls_start_in_order_while_earlier_ones_wait() {
    let (server, address, service) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for text in ["W1......", "E2......", "e3......", "E4......"] {
        stream.write_all(&frame(text)).await.unwrap();
    }
    // The third is not eager: it waits for its turn behind the first.
    eventually(|| service.started.lock().unwrap().len() == 3).await;
    assert_eq!(*service.started.lock().unwrap(), b"124");
    service.gate.notify_one();
    for text in ["W1......", "E2......", "e3......", "E4......"] {
        assert_eq!(answer(&mut stream).await, text);
    }
    assert_eq!(*service.started.lock().unwrap(), b"1243");
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn requests_in_flight_are_bounded() {
    let (server, address, service) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..30 {
        stream.write_all(&frame("W.......")).await.unwrap();
    }
    // Eight in the queue and the one the writer waits for.
    eventually(|| service.waiting.load(Ordering::SeqCst) == 9).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(service.waiting.load(Ordering::SeqCst), 9);
    for _ in 0..30 {
        service.gate.notify_one();
        answer(&mut stream).await;
    }
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn large_answers_arrive_whole() {
    let (server, address, _) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let large = format!("e{}", "x".repeat(20 << 20));
    let (mut reader, mut writer) = stream.split();
    let sending = async { writer.write_all(&frame(&large)).await.unwrap() };
    let receiving = async {
        let mut bytes = vec![0; large.len() + 4];
        reader.read_exact(&mut bytes).await.unwrap();
        assert!(bytes[4..] == *large.as_bytes());
    };
    tokio::join!(sending, receiving);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn what_is_no_frame_closes_after_the_answers_before_it() {
    let (server, address, _) = start(limits()).await;
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0, 0xf4], &[0xff; 8], &[0; 4], &[0x7f, 0xff, 0xff, 0xff]]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&frame("s first.")).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        assert_eq!(answer(&mut stream).await, "s first.");
        assert!(is_closed(&mut stream).await);
    }
    // A call that closes does so in its place, and one without an answer leaves no gap.
    let mut stream = TcpStream::connect(address).await.unwrap();
    for text in ["e first.", "n nothing", "e second", "c close.", "e never."] {
        stream.write_all(&frame(text)).await.unwrap();
    }
    assert_eq!(answer(&mut stream).await, "e first.");
    assert_eq!(answer(&mut stream).await, "e second");
    assert!(is_closed(&mut stream).await);
    // Nobody else was harmed.
    let mut other = TcpStream::connect(address).await.unwrap();
    other.write_all(&frame("e works.")).await.unwrap();
    assert_eq!(answer(&mut other).await, "e works.");
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn idle_connections_are_closed_and_waiting_ones_are_not() {
    let mut limits = limits();
    limits.connection.idle_max = Duration::from_millis(100);
    let (server, address, service) = start(limits).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    let mut stalled = TcpStream::connect(address).await.unwrap();
    stalled.write_all(&[0, 0, 0, 100, 1]).await.unwrap();
    let mut waiting = TcpStream::connect(address).await.unwrap();
    waiting.write_all(&frame("w longer")).await.unwrap();
    assert!(is_closed(&mut idle).await);
    assert!(is_closed(&mut stalled).await);
    tokio::time::sleep(Duration::from_millis(150)).await;
    service.gate.notify_one();
    assert_eq!(answer(&mut waiting).await, "w longer");
    assert!(is_closed(&mut waiting).await);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_client_that_sends_no_more_gets_its_answers_for_a_while() {
    let (server, address, service) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&frame("s answer")).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(answer(&mut stream).await, "s answer");
    assert!(is_closed(&mut stream).await);
    // What takes longer is dropped: its client is gone.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&frame("w for ever")).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(is_closed(&mut stream).await);
    assert_eq!(service.waiting.load(Ordering::SeqCst), 1);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_client_that_takes_no_answer_is_given_up() {
    let mut limits = limits();
    limits.connection.idle_max = Duration::from_millis(100);
    let (server, address, _) = start(limits).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let large = frame(&format!("e{}", "x".repeat(20 << 20)));
    // It is sent, the echo of it does not fit into the sockets' buffers, and nobody reads.
    stream.write_all(&large).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut got = 0;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(Ok(bytes @ 1..)) = timeout(PATIENCE, stream.read(&mut buffer)).await {
        got += bytes;
    }
    assert!(got < large.len(), "{got}");
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn connections_are_limited() {
    let mut all = limits();
    all.connections_max = 2;
    let (server, address, _) = start(all).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    for stream in [&mut first, &mut second] {
        stream.write_all(&frame("e in....")).await.unwrap();
        answer(stream).await;
    }
    // The third waits in the backlog until one leaves.
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(&frame("e third.")).await.unwrap();
    assert!(timeout(Duration::from_millis(50), third.read(&mut [0; 1])).await.is_err());
    drop(first);
    assert_eq!(answer(&mut third).await, "e third.");
    server.stop(PATIENCE).await;

    let mut per_ip = limits();
    per_ip.connections_per_ip_max = 1;
    let (server, address, _) = start(per_ip).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(&frame("e in....")).await.unwrap();
    answer(&mut first).await;
    let mut second = TcpStream::connect(address).await.unwrap();
    assert!(is_closed(&mut second).await);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn stopping_answers_what_was_taken_and_aborting_does_not() {
    let (server, address, service) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&frame("w taken.")).await.unwrap();
    eventually(|| service.waiting.load(Ordering::SeqCst) == 1).await;
    let stopping = tokio::spawn(server.stop(PATIENCE));
    timeout(PATIENCE, async { while TcpStream::connect(address).await.is_ok() {} }).await.expect("no more connections");
    service.gate.notify_one();
    assert_eq!(answer(&mut stream).await, "w taken.");
    assert!(is_closed(&mut stream).await);
    timeout(PATIENCE, stopping).await.expect("it to stop").unwrap();

    // What does not end in time is cut off.
    let (server, address, service) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&frame("w for ever")).await.unwrap();
    eventually(|| service.waiting.load(Ordering::SeqCst) == 1).await;
    timeout(PATIENCE, server.stop(Duration::from_millis(20))).await.expect("it to stop");
    assert!(is_closed(&mut stream).await);

    let (server, address, service) = start(limits()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&frame("w for ever")).await.unwrap();
    eventually(|| service.waiting.load(Ordering::SeqCst) == 1).await;
    timeout(PATIENCE, server.abort()).await.expect("it to stop");
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_taken_port_is_an_error_and_every_interface_can_be_asked_for() {
    let every = Listener::bind(&ListenAddress { host: String::new(), port: 0 }, 16).await.unwrap();
    let port = every.local_addr().port();
    assert!(every.local_addr().ip().is_unspecified());
    let taken = Listener::bind(&ListenAddress { host: String::new(), port }, 16).await.unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
}
