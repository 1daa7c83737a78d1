"""What the client programs share: the broker under test as a child process, and check lines that `cargo xtask` counts.

Each program is run as `python tests/clients PROGRAM --highwater BINARY --work DIR [--kafka-libs DIR]`. With
`--against-kafka` the broker is Apache Kafka instead, to show that the checks ask for what Kafka does.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

READY = re.compile(r"^ready: listening on (\S+):(\d+), data in (.+) \((\d+) partitions?, (\d+) records? recovered in (\d+) ms\)$")


class CheckFailed(Exception):
    """A check that did not hold, with the reason."""


def require(condition, why):
    """Ends the check as failed unless the condition holds."""
    if not condition:
        raise CheckFailed(why)


def equal(found, expected, what):
    """Ends the check as failed, with both values, unless they are equal."""
    if found != expected:
        raise CheckFailed(f"{what}: found {shorten(found)}, expected {shorten(expected)}")


def shorten(value):
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:150]}... ({len(text)} characters)"


class Program:
    """One program: its options, its broker and its checks."""

    def __init__(self, name):
        parser = argparse.ArgumentParser(prog=name)
        is_of_files = name == "kafka_files"
        parser.add_argument("--highwater", type=Path, required=True, help="the highwater binary")
        parser.add_argument("--kafka-files", type=Path, required=is_of_files, help="the example kafka-files of tests/")
        parser.add_argument("--kafka-data", type=Path, required=is_of_files, help="the storage crate's tests/data")
        parser.add_argument("--work", type=Path, required=True, help="a directory for logs and data, emptied first")
        parser.add_argument("--kafka-libs", type=Path, help="the directory of Apache Kafka's jars")
        parser.add_argument("--client", action="append", default=[], help="name, version and command of a client, with | between")
        parser.add_argument("--against-kafka", action="store_true", help="run the checks against Apache Kafka")
        options = parser.parse_args(sys.argv[2:])
        self.name = name
        self.highwater = options.highwater
        self.kafka_files = options.kafka_files
        self.kafka_data = options.kafka_data
        self.work = options.work.resolve()
        self.kafka_libs = options.kafka_libs
        self.against_kafka = options.against_kafka
        self.rows = [row.split("|") for row in options.client]
        self.failed = 0
        self.brokers = []
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def broker(self, name="broker", **settings):
        """A broker with a directory of its own, not started. Settings are Kafka's keys with _ for the dots."""
        kind = KafkaBroker if self.against_kafka else HighwaterBroker
        broker = kind(self, self.work / name, {key.replace("_", "."): value for key, value in settings.items()})
        self.brokers.append(broker)
        return broker

    def check(self, name, function, *arguments):
        """Runs one check and prints its line. Returns what the function returned, or None if it failed."""
        try:
            result = function(*arguments)
        except (CheckFailed, AssertionError) as error:
            self.fail(name, str(error))
        except subprocess.TimeoutExpired as error:
            self.fail(name, f"{Path(error.cmd[0]).name} did not end within {error.timeout} s")
        except Exception as error:
            traceback.print_exc()
            self.fail(name, f"{type(error).__name__}: {error}")
        else:
            print(f"check ok: {self.name}: {name}", flush=True)
            return result
        return None

    def fail(self, name, why):
        self.failed += 1
        print(f"check FAILED: {self.name}: {name}: {' '.join(why.split())}", flush=True)
        for broker in self.brokers:
            broker.print_log()

    def finish(self):
        """Ends the brokers; the exit code says whether all checks held."""
        for broker in self.brokers:
            broker.kill()
        sys.exit(1 if self.failed else 0)

    def java(self, main_class, *arguments, stdin=None, timeout=90):
        """Runs a class of Apache Kafka's and returns its standard output."""
        # A command-line tool is short-lived: the quick compiler and one collector thread start it twice as fast.
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self.kafka_libs}/*", main_class]
        return run(command + [str(argument) for argument in arguments], stdin=stdin, timeout=timeout)


class Broker:
    """A broker as a child process. It keeps its port over restarts."""

    def __init__(self, program, directory, settings):
        self.program = program
        self.directory = directory
        self.settings = settings
        self.data = directory / "data"
        self.port = 0
        self.process = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        """kill -9: nothing is flushed, nobody is told."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """SIGTERM. Returns the seconds until the process was gone."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process = None
        require(code in self.STOPPED, f"the broker ended with {code}")
        return time.monotonic() - started

    def restart(self):
        self.kill()
        self.start()

    def partition(self, topic, partition=0):
        """The directory of one partition."""
        return self.data / f"{topic}-{partition}"

    def print_log(self):
        """The end of what the broker said, for whoever reads a failure."""
        log = self.directory / "log"
        if log.exists():
            lines = log.read_text(errors="replace").splitlines()[-30:]
            print("\n".join([f"---- {log}"] + lines + ["----"]), flush=True)


class HighwaterBroker(Broker):
    STOPPED = (0,)

    def start(self):
        command = [str(self.program.highwater), "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--data-dir", str(self.data)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        # A broker that never gets ready must not hold up the run: its standard output closes when it is killed.
        watchdog = threading.Timer(30, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline().decode().strip()
        watchdog.cancel()
        ready = READY.match(line)
        if not ready:
            self.kill()
            self.print_log()
            raise CheckFailed(f"the broker did not get ready; its first line is {line!r}")
        self.port = int(ready.group(2))
        self.recovered = int(ready.group(5))
        return self


class KafkaBroker(Broker):
    """Apache Kafka in KRaft mode, for trying the checks themselves. It takes the port after its own too."""

    STOPPED = (0, 143)

    def start(self):
        if self.port == 0:
            self.port = free_port()
        properties = self.directory / "server.properties"
        lines = [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{self.port + 1}",
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.port + 1}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            f"log.dirs={self.data}",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
        ]
        lines += [f"{key}={value}" for key, value in self.settings.items()]
        properties.write_text("\n".join(lines) + "\n")
        if not (self.data / "meta.properties").exists():
            self.program.java("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", properties)
        # It runs for seconds: as with the tools, the quick compiler and one collector thread start it sooner.
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]
        command += [f"{self.program.kafka_libs}/*", "kafka.Kafka", str(properties)]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not answers(self.port):
            require(time.monotonic() < deadline, "Apache Kafka did not get ready")
            time.sleep(0.1)
        self.recovered = None
        return self


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    """Whether a broker on this port answers an ApiVersions request."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            return len(connection.recv(64)) > 8
    except OSError:
        return False


def run(command, stdin=None, timeout=60, errors=None, code=0):
    """Runs a command and returns its standard output as bytes; any other exit code than `code` fails the check. What it
    says on its standard error is appended to the list `errors`, if one is given."""
    done = subprocess.run(command, input=stdin if stdin is not None else b"", capture_output=True, timeout=timeout)
    said = done.stderr.decode(errors="replace").strip()
    if errors is not None:
        errors.append(said)
    name = next((part for part in command if part.startswith(("kafka.", "org.apache."))), Path(command[0]).name)
    require(done.returncode == code, f"{name} ended with {done.returncode}: {said[-600:]} {done.stdout[-300:]!r}")
    return done.stdout


def dump_log_segments(program, *directories, gaps=()):
    """Has Kafka's tool look through partitions, and returns what it prints: nothing is wrong then. Offsets may have gaps
    in the directories named."""
    # One run of the tool for all files: starting Java is the slow part.
    kinds = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    files = [path for directory in directories for path in sorted(directory.iterdir()) if path.suffix in kinds]
    for directory in directories:
        require(any(path.suffix == ".log" for path in files if path.parent == directory), f"there is no segment in {directory}")
    said = program.java("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, files))).decode()
    for wrong in ["isvalid: false", "Mismatches in", "Found timestamp mismatch", "Found out of order", "invalid bytes"]:
        found = said.find(wrong)
        require(found < 0, f"DumpLogSegments says {wrong!r}: {said[max(0, found - 200) : found + 300]}")
    for line in said.splitlines():
        allowed = any(f"{directory}/" in line for directory in gaps)
        require("Non-consecutive" not in line or allowed, f"DumpLogSegments says {line!r}")
    equal(said.count("Dumping "), len(files), "files dumped")
    return said


# What the bits of a batch's attributes mean (Kafka's CompressionType).
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


def stored_batches(partition):
    """Every batch in the partition's segments, as (base offset, records, codec), straight from the files."""
    for segment in sorted(partition.glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position + 61 <= len(data):
            base, length = struct.unpack_from(">qi", data, position)
            require(length >= 49 and position + 12 + length <= len(data), f"no whole batch at {position} of {segment}")
            magic = data[position + 16]
            equal(magic, 2, f"magic at {position} of {segment}")
            attributes, last_delta = struct.unpack_from(">hi", data, position + 21)
            (records,) = struct.unpack_from(">i", data, position + 57)
            equal(last_delta, records - 1, f"last offset delta at {position} of {segment}")
            yield base, records, CODECS[attributes & 7]
            position += 12 + length
        equal(position, len(data), f"end of the last whole batch in {segment}")


def stored_codecs(partition):
    """How many stored records each codec has."""
    counts = {}
    for _, records, codec in stored_batches(partition):
        counts[codec] = counts.get(codec, 0) + records
    return counts


def dumped_codecs(program, partition):
    """How many stored records each codec has, as `highwater log dump` reads them."""
    counts = {}
    dump = run([str(program.highwater), "log", "dump", "--format", "json", str(partition)])
    for line in dump.decode().splitlines():
        found = json.loads(line)
        require(found["type"] in ("segment", "batch"), f"highwater log dump says of {partition}: {line}")
        if found["type"] == "batch":
            counts[found["codec"]] = counts.get(found["codec"], 0) + found["count"]
    return counts


def require_codec(broker, topic, codec, records):
    """Requires that the topic's only partition holds so many records, stored in this codec: by its bytes and by what the
    product's own reader makes of them. librdkafka sends a batch as it is when compressing it makes it longer, which
    happens to a batch of one short record or two: a few of those may be there."""
    partition = broker.partition(topic)
    counts = stored_codecs(partition)
    equal(dumped_codecs(broker.program, partition), counts, "records by codec that highwater log dump shows")
    equal(sum(counts.values()), records, "records stored")
    compressed = counts.pop(codec, 0)
    others = sum(counts.values()) if codec == "none" else counts.pop("none", 0) + 1_000_000 * sum(counts.values())
    require(others <= records // 100, f"{compressed} of {records} records are stored as {codec}, {others} otherwise")


def text_lines(count, seed=1):
    """Lines of text like people's: words, accents, another alphabet; never empty, never twice the same."""
    words = "the log is cut where epochs part für schön größer день ночь 高水位 offset 0 1 2 3 10 100".split()
    source = random.Random(seed)
    return [f"{number} " + " ".join(source.choices(words, k=source.randint(1, 24))) for number in range(count)]


def lines_file(path, count, seed=1):
    """Writes `text_lines` to a file and returns its bytes."""
    data = "".join(line + "\n" for line in text_lines(count, seed)).encode()
    path.write_bytes(data)
    return data
