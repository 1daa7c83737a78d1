"""confluent-kafka, that is librdkafka: producing, consuming by hand-assigned partitions, looking up, administration."""

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from support import Program, equal, require, require_codec, stored_codecs, text_lines


def main():
    program = Program("confluent")
    broker = program.broker(num_partitions=1).start()
    admin = AdminClient({"bootstrap.servers": broker.address})

    program.check("creates topics with partitions and settings", create_topics, admin)
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"]:
        program.check(f"round trip, stored as {codec}", round_trip, broker, codec)
    program.check("keys, headers, null and empty values", shapes, broker)
    program.check("an idempotent producer to several partitions", idempotent, broker)
    program.check("offsets by time, the ends, the largest timestamp", lookups, broker, admin)
    program.check("a fetch out of range is told so", out_of_range, broker)
    program.check("a consumer waits for what comes later", long_poll, broker)
    program.check("a record over message.max.bytes is refused", too_large, broker)
    program.check("describes settings", describe_configs, admin)
    program.check("adds partitions", add_partitions, broker, admin)
    program.check("a topic that exists, a bad name, a bad setting", refusals, admin)
    program.check("deletes a topic, and its files go", delete_topic, broker, admin)
    program.check("describes the cluster", describe_cluster, broker, admin)
    program.finish()


def create_topics(admin):
    wanted = [NewTopic("plain", 1, 1), NewTopic("several", 4, 1), NewTopic("kept", 1, 1, config={"retention.ms": "-1"})]
    wanted += [NewTopic(f"codec-{codec}", 1, 1) for codec in ["none", "gzip", "snappy", "lz4", "zstd"]]
    wanted += [NewTopic(name, 1, 1) for name in ["shapes", "times", "later", "large", "short-lived", "growing"]]
    for future in admin.create_topics(wanted).values():
        future.result(30)
    topics = admin.list_topics(timeout=10).topics
    equal(len(topics["several"].partitions), 4, "partitions")
    partition = topics["several"].partitions[3]
    require(partition.leader >= 0 and partition.replicas == [partition.leader] == partition.isrs, "no leader in the ISR")


def produce(broker, records, **settings):
    """Produces (topic, partition, key, value, headers, timestamp) records; returns offsets in the order of the records."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20, **{k.replace("_", "."): v for k, v in settings.items()}})
    offsets = [None] * len(records)
    errors = []

    def delivered(position):
        def report(error, message):
            if error:
                errors.append(error)
            else:
                offsets[position] = message.offset()

        return report

    for position, (topic, partition, key, value, headers, timestamp) in enumerate(records):
        options = {} if timestamp is None else {"timestamp": timestamp}
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers, on_delivery=delivered(position), **options)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(30)
    if errors:
        raise KafkaException(errors[0])
    equal(left, 0, "records not answered in time")
    return offsets


def consume(broker, topic, partition, offset, count, seconds=30):
    """Reads `count` messages from a partition by assignment: no group is joined and nothing is committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "assigned-by-hand",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        messages = []
        deadline = time.monotonic() + seconds
        while len(messages) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(messages), 0.5):
                if message.error():
                    raise KafkaException(message.error())
                messages.append(message)
        equal(len(messages), count, f"messages of {topic}-{partition} within {seconds} s")
        return messages
    finally:
        consumer.close()


def round_trip(broker, codec):
    topic = f"codec-{codec}"
    values = [line.encode() for line in text_lines(20_000, seed=3)]
    offsets = produce(broker, [(topic, 0, None, value, None, None) for value in values], compression_type=codec)
    equal(offsets, list(range(len(values))), "offsets")
    messages = consume(broker, topic, 0, OFFSET_BEGINNING, len(values))
    require([message.value() for message in messages] == values, "what comes back is not what went in")
    equal([message.offset() for message in messages], offsets, "offsets that come back")
    require_codec(broker, topic, codec, len(values))


def shapes(broker):
    records = [
        (b"key", b"value", [("name", b"1"), ("name", b"2"), ("none", None), ("", b"unnamed")]),
        (b"", b"", []),
        (None, b"no key", []),
        (b"gone", None, []),
        (None, None, []),
        ("schlüssel".encode(), bytes(range(256)), [("größe", "高".encode())]),
        (b"k", b"x" * 500_000, [("long", b"y" * 100_000)]),
    ]
    produce(broker, [("shapes", 0, key, value, headers, None) for key, value, headers in records])
    found = [(m.key(), m.value(), m.headers() or []) for m in consume(broker, "shapes", 0, 0, len(records))]
    equal(found, records, "records")


def idempotent(broker):
    values = [line.encode() for line in text_lines(8_000, seed=4)]
    records = [("several", number % 4, None, value, None, None) for number, value in enumerate(values)]
    produce(broker, records, enable_idempotence=True, acks="all")
    for partition in range(4):
        expected = values[partition::4]
        found = [message.value() for message in consume(broker, "several", partition, 0, len(expected))]
        require(found == expected, f"partition {partition} holds something else")
        equal(sum(stored_codecs(broker.partition("several", partition)).values()), len(expected), "records stored")


def lookups(broker, admin):
    start = 1_700_000_000_000
    records = [("times", 0, None, b"%d" % number, None, start + 1_000 * number) for number in range(1_000)]
    # One record in the middle has the largest timestamp of all.
    records[500] = ("times", 0, None, b"500", None, start + 5_000_000)
    produce(broker, records, batch_num_messages=100)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "looks-up"})
    try:
        asked = [0, start + 1, start + 499_000, start + 500_000, start + 4_999_999, start + 5_000_001]
        answers = [consumer.offsets_for_times([TopicPartition("times", 0, time)], 10)[0].offset for time in asked]
        # The first record at or after the time: the early one of the middle serves every later time up to its own.
        # Nothing after the last: librdkafka says the end (-1).
        equal(answers, [0, 1, 499, 500, 500, -1], "offsets by time")
        equal(consumer.get_watermark_offsets(TopicPartition("times", 0), 10), (0, 1_000), "the ends")
    finally:
        consumer.close()
    topic = TopicPartition("times", 0)
    result = admin.list_offsets({topic: OffsetSpec.max_timestamp()})[topic].result(10)
    equal((result.offset, result.timestamp), (500, start + 5_000_000), "the largest timestamp")


def out_of_range(broker):
    try:
        consume(broker, "times", 0, 5_000, 1, seconds=10)
    except KafkaException as error:
        # With auto.offset.reset=error librdkafka reports the broker's OFFSET_OUT_OF_RANGE under its own name.
        code = error.args[0].code()
        require(code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE), f"the error is {error}")
        return
    require(False, "reading past the end gave no error")


def long_poll(broker):
    settings = {"group.id": "waits", "enable.auto.commit": False, "fetch.wait.max.ms": 5_000}
    consumer = Consumer({"bootstrap.servers": broker.address, **settings})
    try:
        consumer.assign([TopicPartition("later", 0, OFFSET_BEGINNING)])
        equal(consumer.poll(1.5), None, "a message before one was sent")
        produce(broker, [("later", 0, None, b"now", None, None)], linger_ms=0)
        started = time.monotonic()
        message = consumer.poll(4)
        require(message is not None and message.value() == b"now", f"got {message}")
        require(time.monotonic() - started < 1, "a waiting fetch was not woken by the produce")
    finally:
        consumer.close()


def too_large(broker):
    try:
        produce(broker, [("large", 0, None, b"x" * 2_000_000, None, None)], message_max_bytes=4_000_000)
    except KafkaException as error:
        equal(error.args[0].code(), KafkaError.MSG_SIZE_TOO_LARGE, "the error")
    else:
        require(False, "it was accepted")
    equal(sum(stored_codecs(broker.partition("large")).values()), 0, "records stored")


def describe_configs(admin):
    resource = ConfigResource(ResourceType.TOPIC, "kept")
    entries = admin.describe_configs([resource])[resource].result(10)
    equal(entries["retention.ms"].value, "-1", "retention.ms")
    equal(entries["cleanup.policy"].value, "delete", "cleanup.policy")
    missing = ConfigResource(ResourceType.TOPIC, "no-such-topic")
    error = error_of(admin.describe_configs([missing])[missing])
    equal(error, KafkaError.UNKNOWN_TOPIC_OR_PART, "the error for a topic that is not there")


def add_partitions(broker, admin):
    admin.create_partitions([NewPartitions("growing", 3)])["growing"].result(10)
    produce(broker, [("growing", partition, None, b"v", None, None) for partition in range(3)])
    equal(consume(broker, "growing", 2, 0, 1)[0].value(), b"v", "the record in the new partition")
    fewer = error_of(admin.create_partitions([NewPartitions("growing", 2)])["growing"])
    equal(fewer, KafkaError.INVALID_PARTITIONS, "the error for fewer partitions")


def refusals(admin):
    topics = [NewTopic("plain", 1, 1), NewTopic("no/slashes", 1, 1), NewTopic("x" * 250, 1, 1), NewTopic("many", 1, 3)]
    topics += [NewTopic("odd", 1, 1, config={"no.such.setting": "1"}), NewTopic("none", 0, 1)]
    futures = admin.create_topics(topics)
    errors = {topic.topic[:10]: error_of(futures[topic.topic]) for topic in topics}
    expected = {
        "plain": KafkaError.TOPIC_ALREADY_EXISTS,
        "no/slashes": KafkaError.TOPIC_EXCEPTION,
        "xxxxxxxxxx": KafkaError.TOPIC_EXCEPTION,
        "many": KafkaError.INVALID_REPLICATION_FACTOR,
        "odd": KafkaError.INVALID_CONFIG,
        "none": KafkaError.INVALID_PARTITIONS,
    }
    equal(errors, expected, "errors")
    require(not set(errors) & (set(admin.list_topics(timeout=10).topics) - {"plain"}), "a refused topic is listed")


def error_of(future):
    try:
        future.result(10)
    except KafkaException as error:
        return error.args[0].code()
    return None


def delete_topic(broker, admin):
    produce(broker, [("short-lived", 0, None, b"v", None, None)])
    directory = broker.partition("short-lived")
    require(directory.is_dir(), f"{directory} is not there")
    admin.delete_topics(["short-lived"])["short-lived"].result(10)
    wait(lambda: not directory.exists(), f"{directory} is still there")
    wait(lambda: "short-lived" not in admin.list_topics(timeout=10).topics, "the topic is still listed")
    error = error_of(admin.delete_topics(["short-lived"])["short-lived"])
    equal(error, KafkaError.UNKNOWN_TOPIC_OR_PART, "the error of a second deletion")
    # The same name again is another topic: nothing of the old one may come back.
    admin.create_topics([NewTopic("short-lived", 1, 1)])["short-lived"].result(10)
    equal(produce(broker, [("short-lived", 0, None, b"again", None, None)]), [0], "offsets in the new topic")


def describe_cluster(broker, admin):
    described = admin.describe_cluster().result(10)
    equal([(node.host, node.port) for node in described.nodes], [("127.0.0.1", broker.port)], "nodes")
    require(described.cluster_id, "there is no cluster id")
    require(described.controller is not None, "there is no controller")


def wait(condition, why, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        require(time.monotonic() < deadline, why)
        time.sleep(0.1)
