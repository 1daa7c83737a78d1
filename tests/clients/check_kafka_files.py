"""Logs that our storage engine wrote, in a data root of Apache Kafka's, and Kafka on them.

Kafka makes the root and its topics, and stops. Our engine fills the topics, and repairs one that was damaged after that:
then Kafka's own tool has to find nothing wrong with the files, and Kafka, started on them, has to serve every record as it was written, and go on. Our engine reads what
Kafka made of it, appends, and ends as if killed, with a torn batch and with zeros at the end of two logs. Kafka recovers
that, serves all, goes on; and our engine reads all of it once more. The part that writes and reads is `tests/kafka-files`,
which gets its own cluster, directory and topic ids from Kafka: with others Kafka would set the folders aside.

`highwater log` looks on: it finds nothing wrong whenever one of the two has stopped, and beside a running Kafka it reads,
and refuses to write.
"""

import hashlib
import json

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support import KafkaBroker, Program, dump_log_segments, equal, require, run

# A time of 2023, and then 10 ms later for each record, as in `tests/kafka-files`.
KAFKA_TIME = 1_701_000_000_000


def main():
    program = Program("kafka_files")
    engine = Engine(program)
    settings = {
        # Records are of 2023, and compaction is ours here.
        "log.retention.ms": "-1",
        "log.cleaner.min.cleanable.ratio": "1.0",
        "num.partitions": "1",
    }
    broker = KafkaBroker(program, program.work / "kafka", settings)
    program.brokers.append(broker)

    if not program.check("Kafka makes the root and its topics", make_root, engine, broker):
        program.finish()
    program.check("highwater log verify finds nothing wrong with Kafka's root", verify, program, broker)
    if not program.check("our engine fills the topics", engine.write, broker):
        program.finish()
    program.check("DumpLogSegments finds nothing wrong", dump, program, engine, broker)
    program.check("highwater log verify finds nothing wrong with what our engine wrote", verify, program, broker)
    program.check("Kafka starts on the files and keeps them all", start, engine, broker)
    program.check("highwater log reads beside the running Kafka", read_beside, program, engine, broker)
    program.check("highwater log refuses to write beside the running Kafka", write_beside, program, broker)
    for topic in engine.topics:
        program.check(f"Kafka serves {topic}", serve, engine, broker, topic)
    program.check("Kafka goes on with them and stops", go_on, engine, broker, "gzip")
    program.check("highwater log verify finds nothing wrong after Kafka stopped", verify, program, broker)
    program.check("our engine reads what Kafka made of them, and is killed", engine.crash, broker)
    program.check("Kafka recovers the root", start, engine, broker)
    for topic in engine.topics:
        program.check(f"Kafka serves {topic} after the crash", serve, engine, broker, topic)
    program.check("Kafka goes on after the crash and stops", go_on, engine, broker, "zstd")
    program.check("highwater log verify finds nothing wrong after Kafka recovered all and stopped", verify, program, broker)
    program.check("our engine reads all", engine.read, broker)
    program.check("highwater log verify finds nothing wrong in the end", verify, program, broker)
    program.check("DumpLogSegments finds nothing wrong in the end", dump, program, engine, broker)
    program.finish()


class Engine:
    """Our engine, in a program that works on Kafka's root while Kafka does not."""

    def __init__(self, program):
        self.binary = str(program.kafka_files)
        self.data = str(program.kafka_data)
        self.records = program.work / "records"
        self.topics = run([self.binary, "topics"]).decode().split()

    def write(self, broker):
        print(run([self.binary, "write", str(broker.data), str(self.records), self.data]).decode(), end="")
        return True

    def crash(self, broker):
        print(run([self.binary, "crash", str(broker.data), str(self.records)]).decode(), end="")

    def read(self, broker):
        print(run([self.binary, "read", str(broker.data), str(self.records)]).decode(), end="")

    def expected(self, topic):
        """Lines of (offset, timestamp, aborted or committed, key, value, headers), as consumers have to get them."""
        text = (self.records / topic).read_text()
        return [line.split("\t") for line in text.splitlines()]

    def add(self, topic, lines):
        with open(self.records / topic, "a") as file:
            file.writelines("\t".join(line) + "\n" for line in lines)


def make_root(engine, broker):
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"} if topic.startswith("compacted") else {}) for topic in engine.topics]
    for future in admin.create_topics(topics).values():
        future.result(30)
    broker.stop()
    for topic in engine.topics:
        require((broker.partition(topic) / "partition.metadata").exists(), f"Kafka made no folder for {topic}")
    return True


def start(engine, broker):
    broker.start()
    for topic in engine.topics:
        require(broker.partition(topic).is_dir(), f"the folder of {topic} is gone")
    set_aside = [path.name for path in broker.data.iterdir() if path.name.endswith(("-stray", "-delete", "-future"))]
    equal(set_aside, [], "folders set aside")


def dump(program, engine, broker):
    # Compaction leaves gaps, and so does the repair of what was damaged.
    gaps = [broker.partition(topic) for topic in ["compacted", "compacted-transactional", "repaired"]]
    dump_log_segments(program, *map(broker.partition, engine.topics), gaps=gaps)


def highwater_log(program, *words, code=0, errors=None):
    return run([str(program.highwater), "log", *map(str, words)], code=code, errors=errors).decode()


def verified(program, path):
    """What `highwater log verify` says at the end, and the faults it found."""
    found = [json.loads(line) for line in highwater_log(program, "verify", "--format", "json", path).splitlines()]
    return found[-1], [line for line in found if line["type"] == "fault" and line["severity"] != "note"]


def verify(program, broker):
    """The whole root, with the topics that Kafka keeps for itself."""
    result, faults = verified(program, broker.data)
    equal((faults, result["good"], result["in_use"]), ([], True, False), "faults, good, in use")


def contents(directory):
    """A digest of each file of a partition, and of no other."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir()) if path.name != ".lock"}


def read_beside(program, engine, broker):
    result, faults = verified(program, broker.data)
    equal((faults, result["good"], result["in_use"]), ([], True, True), "faults, good, in use")
    holder = f"pid {broker.process.pid}"
    text = highwater_log(program, "info", broker.data)
    require(holder in text, f"info of the root does not say {holder}: {text}")
    for topic in ["transactional", "compacted-transactional", "magic-mixed"]:
        directory, expected = broker.partition(topic), engine.expected(topic)
        before = contents(directory)
        text = highwater_log(program, "info", directory)
        require(holder in text, f"info of {topic} does not say {holder}: {text}")
        lines = [json.loads(line) for line in highwater_log(program, "dump", "--records", "--format", "json", directory).splitlines()]
        offsets = {line["offset"] for line in lines if line["type"] == "record"}
        missing = [line[0] for line in expected if int(line[0]) not in offsets]
        equal(missing, [], f"records of {topic} that dump does not show")
        result, faults = verified(program, directory)
        equal((faults, result["good"], result["in_use"]), ([], True, True), f"faults of {topic}, good, in use")
        equal(contents(directory), before, f"files of {topic}")


def write_beside(program, broker):
    directory, copy = broker.partition("transactional"), program.work / "copy-0"
    before = contents(directory)
    for words in [
        ["repair", broker.data],
        ["repair", directory],
        ["repair", "--write", directory],
        ["rebuild-index", directory],
        ["truncate", "--to", "2", "--write", directory],
        ["copy", directory, copy],
    ]:
        errors = []
        highwater_log(program, *words, code=1, errors=errors)
        require(str(broker.process.pid) in errors[0], f"{words[0]} does not name Kafka's process: {errors[0]}")
    equal(contents(directory), before, "files")
    require(not copy.exists(), "a copy was made")


def hexadecimal(value):
    return "null" if value is None else ":" + value.hex()


def line_of(message, headers, kind):
    timestamp_type, timestamp = message.timestamp()
    headers = "".join(f"{hexadecimal(name.encode())}={hexadecimal(value)}," for name, value in headers)
    timestamp = -1 if timestamp_type == TIMESTAMP_NOT_AVAILABLE else timestamp
    return [str(message.offset()), str(timestamp), kind, hexadecimal(message.key()), hexadecimal(message.value()), headers]


def consume(broker, topic, isolation):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            # The end is told by a fetch that has waited this long in vain.
            "fetch.wait.max.ms": 10,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    messages = []
    while True:
        message = consumer.poll(20)
        require(message is not None, f"nothing came for 20 s after {len(messages)} records")
        if message.error():
            require(message.error().name() == "_PARTITION_EOF", f"after {len(messages)} records: {message.error()}")
            break
        messages.append(message)
    consumer.close()
    return messages


def serve(engine, broker, topic):
    expected = engine.expected(topic)
    committed = [line for line in expected if line[2] == "committed"]
    for isolation, lines in [("read_uncommitted", expected), ("read_committed", committed)]:
        messages = consume(broker, topic, isolation)
        kinds = {line[0]: line[2] for line in expected}
        found = []
        for message in messages:
            kind = kinds.get(str(message.offset()), "unexpected")
            found.append(line_of(message, message.headers() or [], kind))
        for at, (got, wanted) in enumerate(zip(found, lines)):
            equal(got, wanted, f"{isolation}, record {at}")
        equal(len(found), len(lines), f"{isolation}, records")


def go_on(engine, broker, codec):
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "linger.ms": 5, "compression.type": codec})
    delivered = {topic: [] for topic in engine.topics}
    headers = [("from", b"Kafka"), ("nothing", None)]
    errors = []

    def report(error, message):
        if error:
            errors.append(error)
        else:
            # A delivery report comes without the headers.
            delivered[message.topic()].append(line_of(message, headers, "committed"))

    for topic in engine.topics:
        for number in range(25):
            value = f"{codec} {topic} {number} ".encode() * 9
            producer.produce(topic, value, f"kafka-{codec}-{number}", partition=0, timestamp=KAFKA_TIME + 10 * number, headers=headers, on_delivery=report)
    equal(producer.flush(30), 0, "records not delivered")
    equal(errors, [], "errors of the producer")
    for topic, lines in delivered.items():
        equal(len(lines), 25, f"records delivered to {topic}")
        engine.add(topic, lines)
    broker.stop()
