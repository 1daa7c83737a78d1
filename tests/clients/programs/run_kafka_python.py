"""kafka-python in the scenarios of `common.py`; its releases 2.0 and 3.0 differ in a few names."""

import signal
import sys
import threading
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.structs import OffsetAndMetadata

import common
from common import equal, eventually, say

# Release 2.0 has no transactions, no idempotent producer, no static members.
OLD = "enable_idempotence" not in KafkaProducer.DEFAULT_CONFIG


def producer(bootstrap, **settings):
    return KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20, **settings)


def send(one, topic, records):
    futures = [one.send(topic, **record) for record in records]
    one.flush(20)
    for future in futures:
        future.get(20)
    one.close()


def consumer(bootstrap, group=None, **settings):
    given = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **settings}
    return KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **given)


def take(one, count, seconds=20):
    records = []
    deadline = time.monotonic() + seconds
    while len(records) < count and time.monotonic() < deadline:
        for batch in one.poll(300, max_records=count - len(records)).values():
            records += batch
    equal(len(records), count, f"records within {seconds} s")
    return records


def read(bootstrap, topic, count, **settings):
    one = consumer(bootstrap, **settings)
    one.assign([TopicPartition(topic, 0)])
    one.seek_to_beginning()
    try:
        return take(one, count)
    finally:
        one.close()


def offset_and_metadata(offset):
    """Release 2.0 knows no leader epoch here."""
    return OffsetAndMetadata(offset, "", *([-1] if len(OffsetAndMetadata._fields) == 3 else []))


def scenarios(bootstrap, prefix):
    topic = lambda name: f"{prefix}-{name}"

    def stored(codec):
        name = topic(f"stored-{codec}")
        expected = [(b"k%d" % number, common.value(number)) for number in range(common.RECORDS)]
        records = [{"key": key, "value": value, "partition": 0} for key, value in expected]
        send(producer(bootstrap, compression_type=None if codec == "none" else codec), name, records)
        equal([(record.key, record.value) for record in read(bootstrap, name, common.RECORDS)], expected, "records")

    def shapes():
        records = [{"key": key, "value": value, "headers": headers, "partition": 0} for key, value, headers in common.SHAPES]
        send(producer(bootstrap), topic("shapes"), records)
        found = [(r.key, r.value, list(r.headers)) for r in read(bootstrap, topic("shapes"), len(common.SHAPES))]
        equal(found, common.SHAPES, "records")

    def keys():
        records = [{"key": b"key-%d" % number, "value": b"%d" % number} for number in range(common.KEYS)]
        send(producer(bootstrap), topic("keys"), records)

    def large():
        record = {"value": b"x" * common.LARGE, "partition": 0}
        send(producer(bootstrap, max_request_size=4_000_000), topic("large"), [record])
        equal(len(read(bootstrap, topic("large"), 1)[0].value), common.LARGE, "bytes")

    def empty():
        part = TopicPartition(topic("empty"), 0)
        one = consumer(bootstrap)
        one.assign([part])
        equal(one.poll(700), {}, "records")
        equal((one.beginning_offsets([part])[part], one.end_offsets([part])[part]), (0, 0), "the ends")
        one.close()

    def seek_by_time():
        records = [{"value": value, "timestamp_ms": time_ms, "partition": 0} for value, time_ms in common.times()]
        send(producer(bootstrap), topic("times"), records)
        part = TopicPartition(topic("times"), 0)
        one = consumer(bootstrap)
        one.assign([part])
        offset = one.offsets_for_times({part: common.SOUGHT})[part].offset
        equal(offset, 51, "offset by time")
        one.seek(part, offset)
        equal(take(one, 1)[0].value, b"51", "the record there")
        one.close()

    def commits():
        part = TopicPartition(topic("times"), 0)

        def goes_on_at(expected, count):
            one = consumer(bootstrap, topic("commits"))
            one.subscribe([topic("times")])
            records = take(one, count)
            equal(records[0].offset, expected, "where the group goes on")
            one.commit({part: offset_and_metadata(records[-1].offset + 1)})
            one.close()

        goes_on_at(0, 40)
        goes_on_at(40, 5)
        one = consumer(bootstrap, topic("commits"))
        one.assign([part])
        one.commit({part: offset_and_metadata(10)})
        equal(one.committed(part), 10, "what was set")
        one.close()
        goes_on_at(10, 1)

    def regex():
        one = consumer(bootstrap, topic("regex"))
        one.subscribe(pattern=f"^{prefix}-regex-.*")
        equal(sorted(record.value for record in take(one, 2)), [b"regex-a", b"regex-b"], "records")
        one.close()

    def admin():
        one = KafkaAdminClient(bootstrap_servers=bootstrap)
        made = topic("made")
        one.create_topics([NewTopic(made, num_partitions=3, replication_factor=1, topic_configs={"retention.ms": "60000"})])
        eventually(lambda: made in one.list_topics(), True, "the topic is listed")
        one.describe_configs([ConfigResource(ConfigResourceType.TOPIC, made)])
        one.create_partitions({made: NewPartitions(5)})
        eventually(lambda: len(one.describe_topics([made])[0]["partitions"]), 5, "partitions after growing")
        one.delete_topics([made])
        eventually(lambda: made in one.list_topics(), False, "the topic is listed after deletion")
        group = topic("commits")
        list_groups = one.list_consumer_groups if OLD else one.list_groups
        listed = lambda: [found[0] if isinstance(found, tuple) else found["group_id"] for found in list_groups()]
        equal(group in listed(), True, "the group is listed")
        described = one.describe_consumer_groups([group])[0].state if OLD else one.describe_groups([group])[group]["group_state"]
        equal(described, "Empty", "state of the group")
        (one.delete_consumer_groups if OLD else one.delete_groups)([group])
        equal(group in listed(), False, "the group is listed after deletion")
        one.close()

    def settings():
        one = KafkaAdminClient(bootstrap_servers=bootstrap)
        one.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic("times"), {"retention.ms": "9000000000000"})])
        resource = ConfigResource(ConfigResourceType.TOPIC, topic("times"), {"retention.ms": None})
        eventually(lambda: "'9000000000000'" in str(one.describe_configs([resource])), True, "it is described")
        # Release 2.0 deletes no records.
        if not OLD:
            part = TopicPartition(topic("times"), 0)
            one.delete_records({part: 20})
            reads = consumer(bootstrap)
            equal(reads.beginning_offsets([part])[part], 20, "the beginning")
            reads.close()
        one.close()

    functions = {f"stored as {codec}": lambda codec=codec: stored(codec) for codec in common.CODECS}
    functions |= {"shapes": shapes, "keys": keys, "large": large, "empty": empty, "seek by time": seek_by_time}
    return functions | {"commits": commits, "regex": regex, "admin": admin, "settings": settings}


def until_terminated():
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    return ended


def listener(one):
    from kafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            say("assigned -")

        def on_partitions_assigned(self, assigned):
            say("assigned", ",".join(str(part.partition) for part in one.assignment()) or "-")

    return Listener()


def member(bootstrap, group, topic, instance, session):
    ended = until_terminated()
    settings = {} if instance == "-" else {"group_instance_id": instance}
    one = consumer(
        bootstrap, group, session_timeout_ms=int(session), heartbeat_interval_ms=500, enable_auto_commit=True,
        auto_commit_interval_ms=500, **settings,
    )
    one.subscribe([topic], listener=listener(one))
    while not ended.is_set():
        for batch in one.poll(100).values():
            for record in batch:
                say("record", record.partition, record.offset, record.value.decode())
    one.close()


def copy(bootstrap, group, source, target, transaction):
    ended = until_terminated()
    settings = {"isolation_level": "read_committed", "group_instance_id": "copier", "session_timeout_ms": 15_000}
    one = consumer(bootstrap, group, max_poll_records=20, **settings)
    sends = producer(bootstrap, transactional_id=transaction)
    sends.init_transactions()
    one.subscribe([source])
    while not ended.is_set():
        batches = one.poll(200)
        if not batches:
            continue
        sends.begin_transaction()
        positions = {}
        for part, records in batches.items():
            for record in records:
                sends.send(target, record.value, partition=part.partition)
            positions[part] = offset_and_metadata(records[-1].offset + 1)
        time.sleep(0.05)
        sends.send_offsets_to_transaction(positions, one.group_metadata() if hasattr(one, "group_metadata") else group)
        sends.commit_transaction()
        say("committed", sum(map(len, batches.values())))
    one.close()


if __name__ == "__main__":
    common.main(scenarios, member, copy)
    sys.exit(0)
