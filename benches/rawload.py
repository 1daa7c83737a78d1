#!/usr/bin/env python3
"""A load on a Kafka-compatible broker without a client library in the way.

  rawload.py produce HOST:PORT TOPIC [--records N] [--size B] [--megabytes M] [--window W] [--acks A] [--partition P]
  rawload.py fetch   HOST:PORT TOPIC [--megabytes M] [--fetch-bytes B] [--partition P]

`produce` encodes one Produce request (version 7) beforehand and sends it again and again, W of them in flight. `fetch`
reads with Fetch (version 4) from the first offset on and walks the headers of the batches. Each prints one line: MB/s of
values (produce) or of batches (fetch), requests a second, and quantiles of the time from request to answer. Client
libraries reach a few hundred MB/s on two cores and so measure themselves; this measures the broker.
"""

import argparse
import os
import socket
import struct
import sys
import time

PRODUCE, FETCH = 0, 1


def crc32c(data):
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(number):
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record_batch(records, size):
    """A batch of magic 2 with random values, uncompressed, of no idempotent producer."""
    body = bytearray()
    for delta in range(records):
        value = os.urandom(size)
        record = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(size) + value + varint(0)
        body += varint(len(record)) + record
    now = int(time.time() * 1000)
    checked = struct.pack(">hiqqqhii", 0, records - 1, now, now, -1, -1, -1, records) + body
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def string(text):
    return struct.pack(">h", len(text.encode())) + text.encode()


def frame(key, version, correlation_id, body):
    header = struct.pack(">hhi", key, version, correlation_id) + string("rawload")
    return struct.pack(">i", len(header) + len(body)) + header + body


class Connection:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = self.socket.makefile("rb", 1 << 20)

    def send(self, data):
        self.socket.sendall(data)

    def answer(self):
        prefix = self.input.read(4)
        if len(prefix) < 4:
            sys.exit("the broker closed the connection")
        return self.input.read(struct.unpack(">i", prefix)[0])


def report(what, megabytes, times, seconds):
    times.sort()
    quantile = lambda part: times[min(len(times) - 1, int(len(times) * part))] * 1e3
    print(
        f"{what}: {megabytes / seconds:.1f} MB/s {len(times) / seconds:.0f} requests/s"
        f" p50={quantile(0.5):.2f} p99={quantile(0.99):.2f} p99.9={quantile(0.999):.2f} max={times[-1] * 1e3:.2f} ms"
    )


def produce(options):
    batch = record_batch(options.records, options.size)
    body = struct.pack(">hhii", -1, options.acks, 30_000, 1) + string(options.topic)
    body += struct.pack(">iii", 1, options.partition, len(batch)) + batch
    request = frame(PRODUCE, 7, 1, body)
    # Correlation id, one topic, its name, one partition, its number: then the error code.
    error_at = 4 + 4 + 2 + len(options.topic.encode()) + 4 + 4
    connection = Connection(options.broker)
    wanted = max(1, int(options.megabytes * 1e6 / (options.records * options.size)))
    started, times = [], []
    begin = time.perf_counter()
    while len(times) < wanted:
        while len(started) < wanted and len(started) - len(times) < options.window:
            started.append(time.perf_counter())
            connection.send(request)
        (error,) = struct.unpack_from(">h", connection.answer(), error_at)
        if error:
            sys.exit(f"produce failed with error code {error}")
        times.append(time.perf_counter() - started[len(times)])
    seconds = time.perf_counter() - begin
    what = f"produce {options.records}x{options.size}B window={options.window} acks={options.acks}"
    report(what, wanted * options.records * options.size / 1e6, times, seconds)


def fetch(options):
    connection = Connection(options.broker)
    offset, total, times = 0, 0, []
    begin = time.perf_counter()
    while total < options.megabytes * 1e6:
        body = struct.pack(">iiiibi", -1, 500, 1, options.fetch_bytes, 0, 1) + string(options.topic)
        body += struct.pack(">iiqi", 1, options.partition, offset, options.fetch_bytes)
        started = time.perf_counter()
        connection.send(frame(FETCH, 4, len(times), body))
        answer = connection.answer()
        times.append(time.perf_counter() - started)
        # Correlation id, throttle time, one topic, its name, one partition, its number: then the error code.
        at = 4 + 4 + 4 + 2 + len(options.topic.encode()) + 4 + 4
        (error,) = struct.unpack_from(">h", answer, at)
        if error:
            sys.exit(f"fetch failed with error code {error}")
        # High watermark, last stable offset, aborted transactions, then the batches' length.
        at += 2 + 8 + 8
        (aborted,) = struct.unpack_from(">i", answer, at)
        at += 4 + max(0, aborted) * 16
        (size,) = struct.unpack_from(">i", answer, at)
        at += 4
        end = at + max(0, size)
        before = offset
        while at + 61 <= end:
            base, length = struct.unpack_from(">qi", answer, at)
            if at + 12 + length > end:
                break
            offset = base + struct.unpack_from(">i", answer, at + 23)[0] + 1
            at += 12 + length
            total += 12 + length
        if offset == before:
            break
    seconds = time.perf_counter() - begin
    report(f"fetch {options.fetch_bytes}B", total / 1e6, times, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in [("produce", produce), ("fetch", fetch)]:
        command = commands.add_parser(name)
        command.add_argument("broker")
        command.add_argument("topic")
        command.add_argument("--partition", type=int, default=0)
        command.add_argument("--megabytes", type=float, default=1_000)
        command.set_defaults(run=run)
        if name == "produce":
            command.add_argument("--records", type=int, default=100)
            command.add_argument("--size", type=int, default=1_024)
            command.add_argument("--window", type=int, default=8)
            command.add_argument("--acks", type=int, default=-1)
        else:
            command.add_argument("--fetch-bytes", type=int, default=1 << 20)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
