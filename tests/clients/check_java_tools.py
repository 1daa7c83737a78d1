"""Apache Kafka's own command-line tools, and its DumpLogSegments on the files that the broker wrote."""

import fcntl
import re
import struct
import subprocess

from support import CheckFailed, KafkaBroker, Program, dump_log_segments, equal, require, require_codec, stored_batches, text_lines

COMMANDS = "org.apache.kafka.tools"


def main():
    program = Program("java_tools")
    # Small segments, so that there are sealed ones with indexes and snapshots to dump.
    broker = program.broker(num_partitions=1, log_segment_bytes=1_048_576).start()

    if not program.against_kafka:
        program.check("neither starts on a directory that the other holds", exclude, program, broker)
    program.check("TopicCommand --create", create, program, broker)
    program.check("TopicCommand --describe", describe, program, broker, "perf", 2)
    program.check("TopicCommand --alter --partitions", alter, program, broker)
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"]:
        program.check(f"ProducerPerformance, stored as {codec}", performance, program, broker, codec)
    lines = text_lines(3_000, seed=6)
    program.check("ConsoleProducer", console_producer, program, broker, lines)
    program.check("ConsoleConsumer --partition", console_consumer, program, broker, lines)
    program.check("ConsoleConsumer --partition --offset, with keys and timestamps", console_consumer_from, program, broker)
    program.check("GetOffsetShell", get_offsets, program, broker, lines)
    for name, topic in [("ProducerPerformance", "perf-none"), ("zstd", "perf-zstd"), ("console", "console")]:
        program.check(f"DumpLogSegments of live files: {name}", dump, program, broker, topic)
    program.check("DumpLogSegments after kill -9 and a restart", dump_after_kill, program, broker)
    program.check("the indexes and snapshots are there and hold entries", side_files, broker)
    program.check("TopicCommand --delete", delete, program, broker)
    program.check("DumpLogSegments after a clean stop", dump_after_stop, program, broker)
    program.finish()


def tool(program, broker, name, *arguments, **options):
    return program.java(f"{COMMANDS}.{name}", "--bootstrap-server", broker.address, *arguments, **options).decode()


def exclude(program, broker):
    """Kafka and we keep each other out of a data directory."""
    # Java's FileChannel takes a record lock on this file, which is what lockf asks for.
    with open(broker.data / ".lock", "r+b") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        else:
            raise CheckFailed("the lock that Kafka takes is free on the directory of a running broker")
    theirs = KafkaBroker(program, program.work / "kafka", {})
    program.brokers.append(theirs)
    theirs.start()
    command = [str(program.highwater), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(theirs.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    theirs.kill()
    equal(done.returncode, 1, "exit code on a directory that Apache Kafka holds")
    require(str(theirs.data) in done.stderr and "Kafka" in done.stderr, f"it does not say who holds it: {done.stderr[-500:]}")


def create(program, broker):
    said = tool(program, broker, "TopicCommand", "--create", "--topic", "perf", "--partitions", "2", "--replication-factor", "1")
    require("Created topic perf" in said, said)
    listed = tool(program, broker, "TopicCommand", "--list").split()
    require("perf" in listed, f"listed are {listed}")


def describe(program, broker, topic, partitions):
    said = tool(program, broker, "TopicCommand", "--describe", "--topic", topic)
    require(re.search(rf"Topic: {topic}\s+TopicId: [\w-]{{22}}\s+PartitionCount: {partitions}\s+ReplicationFactor: 1", said), said)
    rows = re.findall(r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\d+)\s+Isr: (\d+)", said)
    equal([row[0] for row in rows], [str(partition) for partition in range(partitions)], "partitions described")
    require(all(leader == replica == isr for _, leader, replica, isr in rows), f"leader, replicas and ISR differ: {rows}")


def alter(program, broker):
    tool(program, broker, "TopicCommand", "--alter", "--topic", "perf", "--partitions", "3")
    describe(program, broker, "perf", 3)


def performance(program, broker, codec):
    records = 5_000
    topic = f"perf-{codec}"
    # The Java producer is idempotent and asks for acks=all by default. Its payload is random letters.
    said = program.java(
        f"{COMMANDS}.ProducerPerformance",
        *("--topic", topic, "--num-records", records, "--record-size", 1024, "--throughput", -1),
        *("--producer-props", f"bootstrap.servers={broker.address}", f"compression.type={codec}", "linger.ms=50"),
    ).decode()
    require(said.splitlines()[-1].startswith(f"{records} records sent"), said)
    require_codec(broker, topic, codec, records)


def console_producer(program, broker, lines):
    text = "".join(line + "\n" for line in lines).encode()
    tool(program, broker, "ConsoleProducer", "--topic", "console", stdin=text)
    equal(sum(records for _, records, _ in stored_batches(broker.partition("console"))), len(lines), "records stored")


def console_consumer(program, broker, lines):
    said = tool(
        program,
        broker,
        "consumer.ConsoleConsumer",
        *("--topic", "console", "--partition", 0, "--from-beginning", "--max-messages", len(lines)),
    )
    require(said.splitlines() == lines, "what comes back is not what went in")


def console_consumer_from(program, broker):
    tool(
        program,
        broker,
        "ConsoleProducer",
        *("--topic", "keyed", "--property", "parse.key=true", "--property", "key.separator=|"),
        stdin=b"a|1\nb|2\nc|3\n",
    )
    said = tool(
        program,
        broker,
        "consumer.ConsoleConsumer",
        *("--topic", "keyed", "--partition", 0, "--offset", 1, "--max-messages", 2),
        *("--property", "print.key=true", "--property", "print.offset=true"),
        *("--property", "print.timestamp=true"),
    )
    shown = [re.sub(r"CreateTime:\d{13}", "CreateTime", line).split("\t") for line in said.splitlines()]
    equal(shown, [["CreateTime", "Offset:1", "b", "2"], ["CreateTime", "Offset:2", "c", "3"]], "records shown")


def get_offsets(program, broker, lines):
    said = tool(program, broker, "GetOffsetShell", "--topic-partitions", "console:0,perf-lz4:0")
    equal(sorted(said.split()), ["console:0:" + str(len(lines)), "perf-lz4:0:5000"], "the ends")
    said = tool(program, broker, "GetOffsetShell", "--topic-partitions", "perf-lz4:0", "--time", "earliest")
    equal(said.split(), ["perf-lz4:0:0"], "the beginning")


def dump(program, broker, topic):
    """Dumps each file of a partition and finds nothing wrong, and every record there."""
    directory = broker.partition(topic)
    said = dump_log_segments(program, directory)
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", said, re.MULTILINE)]
    stored = sum(records for _, records, _ in stored_batches(directory))
    require(stored > 0, f"there is no record in {directory}")
    equal(offsets == list(range(stored)), True, f"the {len(offsets)} records dumped are 0 to {stored - 1}")
    # The tool prints this on each batch that it has checked.
    equal(said.count("isvalid: true"), len(list(stored_batches(directory))), "batches found valid")


def dump_after_kill(program, broker):
    broker.restart()
    for topic in ["perf-none", "perf-snappy"]:
        dump(program, broker, topic)


def side_files(broker):
    directory = broker.partition("perf-none")
    bases = [path.stem for path in sorted(directory.glob("*.log"))]
    require(len(bases) >= 4, f"5 MB in segments of 1 MiB are in {len(bases)} segments")
    for base in bases[:-1]:
        index = (directory / f"{base}.index").read_bytes()
        require(len(index) >= 8 and len(index) % 8 == 0, f"{base}.index has {len(index)} bytes")
        times = (directory / f"{base}.timeindex").read_bytes()
        require(len(times) >= 12 and len(times) % 12 == 0, f"{base}.timeindex has {len(times)} bytes")
        positions = [position for _, position in struct.iter_unpack(">ii", index)]
        require(positions == sorted(set(positions)), f"positions in {base}.index do not rise")
    require(list(directory.glob("*.snapshot")), "an idempotent producer left no snapshot")
    equal((directory / "leader-epoch-checkpoint").read_text().split()[0], "0", "version of leader-epoch-checkpoint")
    require("topic_id: " in (directory / "partition.metadata").read_text(), "partition.metadata names no topic id")


def delete(program, broker):
    tool(program, broker, "TopicCommand", "--delete", "--topic", "perf")
    listed = tool(program, broker, "TopicCommand", "--list").split()
    require("perf" not in listed and "console" in listed, f"listed are {listed}")


def dump_after_stop(program, broker):
    broker.stop()
    for topic in ["perf-none", "perf-gzip", "perf-lz4", "console", "keyed"]:
        dump(program, broker, topic)
