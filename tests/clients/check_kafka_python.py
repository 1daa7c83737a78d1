"""kafka-python: a client that shares no code with librdkafka or Java."""

import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import MessageSizeTooLargeError

from support import Program, dumped_codecs, equal, require, stored_codecs, text_lines


def main():
    program = Program("kafka_python")
    broker = program.broker(num_partitions=1).start()
    program.check("creates topics", create_topics, broker)
    # snappy, lz4 and zstd need further packages in kafka-python; librdkafka and Java cover them.
    for codec in ["none", "gzip"]:
        program.check(f"round trip, stored as {codec}", round_trip, broker, codec)
    program.check("keys, headers, null values", shapes, broker)
    program.check("the ends and offsets by time", lookups, broker)
    program.check("a topic is made by its first use", first_use, broker)
    program.check("a record over message.max.bytes is refused", too_large, broker)
    program.check("reads on after kill -9 and a restart", reads_on, broker)
    program.finish()


def create_topics(broker):
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    names = ["codec-none", "codec-gzip", "shapes", "times", "large"]
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1) for name in names])
    require(set(names) <= set(admin.list_topics()), "a topic is not listed")
    admin.close()


def produce(broker, topic, records, **settings):
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all", linger_ms=20, **settings)
    futures = [producer.send(topic, partition=0, **record) for record in records]
    producer.flush(30)
    offsets = [future.get(30).offset for future in futures]
    producer.close()
    return offsets


def consume(broker, topic, count, seconds=30):
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=None, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    records = []
    deadline = time.monotonic() + seconds
    while len(records) < count and time.monotonic() < deadline:
        for batch in consumer.poll(500).values():
            records += batch
    consumer.close()
    equal(len(records), count, f"records within {seconds} s")
    return records


def round_trip(broker, codec):
    topic = f"codec-{codec}"
    values = [line.encode() for line in text_lines(5_000, seed=5)]
    compression = None if codec == "none" else codec
    offsets = produce(broker, topic, [{"value": value} for value in values], compression_type=compression)
    equal(offsets, list(range(len(values))), "offsets")
    require([record.value for record in consume(broker, topic, len(values))] == values, "what comes back is not what went in")
    equal(stored_codecs(broker.partition(topic)), {codec: len(values)}, "stored records by codec")
    dumped = dumped_codecs(broker.program, broker.partition(topic))
    equal(dumped, {codec: len(values)}, "records by codec that highwater log dump shows")


def shapes(broker):
    records = [
        {"key": b"key", "value": b"value", "headers": [("name", b"1"), ("name", b"2")]},
        {"key": b"gone", "value": None, "headers": []},
        {"key": None, "value": b"", "headers": [("empty", b"")]},
    ]
    produce(broker, "shapes", records)
    found = [{"key": r.key, "value": r.value, "headers": list(r.headers)} for r in consume(broker, "shapes", 3)]
    equal(found, records, "records")


def lookups(broker):
    start = 1_700_000_000_000
    produce(broker, "times", [{"value": b"%d" % n, "timestamp_ms": start + 1_000 * n} for n in range(200)])
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=None)
    partition = TopicPartition("times", 0)
    equal(consumer.beginning_offsets([partition]), {partition: 0}, "beginning")
    equal(consumer.end_offsets([partition]), {partition: 200}, "end")
    found = consumer.offsets_for_times({partition: start + 100_500})[partition]
    equal((found.offset, found.timestamp), (101, start + 101_000), "offset by time")
    equal(consumer.offsets_for_times({partition: start + 200_000}), {partition: None}, "offset by a time after the last")
    consumer.close()


def first_use(broker):
    equal(produce(broker, "made-by-use", [{"value": b"v"}]), [0], "offsets")
    equal(consume(broker, "made-by-use", 1)[0].value, b"v", "the record")


def too_large(broker):
    try:
        produce(broker, "large", [{"value": b"x" * 2_000_000}], max_request_size=4_000_000)
    except MessageSizeTooLargeError:
        return
    require(False, "it was accepted")


def reads_on(broker):
    """A consumer and a producer that live through the broker's death go on by themselves."""
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all", retries=1_000, max_block_ms=30_000)
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=None)
    consumer.assign([TopicPartition("codec-none", 0)])
    consumer.seek_to_end()
    before = consumer.position(TopicPartition("codec-none", 0))
    broker.restart()
    offset = producer.send("codec-none", b"after", partition=0).get(60).offset
    equal(offset, before, "offset of the first record after the restart")
    deadline = time.monotonic() + 30
    values = []
    while not values and time.monotonic() < deadline:
        values = [record.value for batch in consumer.poll(500).values() for record in batch]
    equal(values, [b"after"], "what the old consumer gets")
    consumer.close()
    producer.close()
