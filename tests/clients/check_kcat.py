"""kcat: files go in and come back byte for byte, in every codec, also after kill -9 and a restart."""

import re

from support import Program, equal, lines_file, require, require_codec, run, text_lines


def main():
    program = Program("kcat")
    broker = program.broker(num_partitions=1).start()
    book = program.work / "book.txt"
    # Enough for many batches and more than one fetch.
    text = lines_file(book, 60_000)
    lock = program.work / "Cargo.lock"
    lock.write_bytes(b"".join(line + b"\n" for line in open("Cargo.lock", "rb").read().split(b"\n") if line))

    def kcat(*arguments, **options):
        return run(["kcat", "-b", broker.address, *arguments], **options)

    def produce(topic, file, *options):
        kcat("-t", topic, "-P", "-l", str(file), *options)

    def consume(topic, *options):
        return kcat("-t", topic, "-C", "-o", "beginning", "-e", "-q", *options)

    def lists():
        listing = kcat("-L").decode()
        require(re.search(rf"broker \d+ at 127.0.0.1:{broker.port}", listing), f"listing is {listing}")

    def round_trip(topic, file, expected, codec):
        produce(topic, file, *([] if codec == "none" else ["-z", codec]))
        require(consume(topic) == expected, "what comes back is not what went in")
        require_codec(broker, topic, codec, len(expected.splitlines()))

    def again(topic, expected):
        require(consume(topic) == expected, "what comes back is not what went in")

    program.check("lists the broker", lists)
    program.check("a file, byte for byte", round_trip, "books", book, text, "none")
    program.check("Cargo.lock, byte for byte", round_trip, "lock", lock, lock.read_bytes(), "none")
    for codec in ["gzip", "snappy", "lz4", "zstd"]:
        program.check(f"a file with -z {codec}, stored as {codec}", round_trip, f"books-{codec}", book, text, codec)

    def crc():
        require(consume("books", "-X", "check.crcs=true") == text, "what comes back is not what went in")

    def end():
        equal(kcat("-t", "books", "-C", "-o", "-5", "-e", "-q"), b"".join(text.splitlines(True)[-5:]), "last five")

    def query():
        listing = kcat("-Q", "-t", "books:0:-1").decode().split()
        equal(listing[-2:], ["offset", "60000"], "answer to -Q")

    def keys_and_headers():
        records = "".join(f"k{n}|v{n}\n" for n in range(500))
        kcat("-t", "keys", "-P", "-K", "|", "-H", "colour=blue", "-H", "empty=", stdin=records.encode())
        shown = consume("keys", "-f", "%k|%s\n", "-c", "500")
        equal(shown, records.encode(), "keys and values")
        equal(consume("keys", "-f", "%h\n", "-c", "1"), b"colour=blue,empty=\n", "headers")

    def tombstone():
        kcat("-t", "nulls", "-P", "-K", "|", "-Z", stdin=b"gone|\n")
        equal(consume("nulls", "-f", "%k %S\n"), b"gone -1\n", "key and length of the value")

    def large():
        value = ("x" * 900_000).encode()
        kcat("-t", "large", "-P", stdin=value + b"\n")
        equal(len(consume("large")), len(value) + 1, "length of what comes back")

    def acks(wanted):
        topic = f"acks-{wanted}"
        lines = "".join(line + "\n" for line in text_lines(2_000, seed=7)).encode()
        kcat("-t", topic, "-P", "-X", f"acks={wanted}", stdin=lines)
        require(consume(topic) == lines, "what comes back is not what went in")

    program.check("-X check.crcs=true", crc)
    program.check("-o -5", end)
    program.check("-Q", query)
    program.check("keys and headers", keys_and_headers)
    program.check("a null value", tombstone)
    program.check("a record of 900,000 bytes", large)
    for wanted in ["1", "all"]:
        program.check(f"acks={wanted}", acks, wanted)
    program.check("acks=0", acks_zero, broker, kcat, consume)

    def survive_kill():
        broker.restart()
        again("books", text)

    program.check("a file, after kill -9 and a restart", survive_kill)
    for codec in ["gzip", "snappy", "lz4", "zstd"]:
        program.check(f"the {codec} file, after kill -9 and a restart", again, f"books-{codec}", text)

    def grow():
        produce("books", book)
        require(consume("books") == text + text, "what comes back is not twice what went in")

    def survive_stop():
        seconds = broker.stop()
        require(seconds < 5 or program.against_kafka, f"a clean stop took {seconds:.1f} s")
        broker.start()
        again("books", text + text)

    program.check("appended after the restart", grow)
    program.check("a file, after a clean stop in under 5 s and a restart", survive_stop)
    program.finish()


def acks_zero(broker, kcat, consume):
    """acks=0 is never answered, so nothing but the records themselves says that they arrived."""
    lines = b"".join(b"%d\n" % number for number in range(1_000))
    kcat("-t", "acks-0", "-P", "-X", "acks=1", stdin=b"first\n")
    kcat("-t", "acks-0", "-P", "-X", "acks=0", stdin=lines)
    for _ in range(50):
        found = consume("acks-0")
        if found == b"first\n" + lines:
            return
    equal(found, b"first\n" + lines, "records")
