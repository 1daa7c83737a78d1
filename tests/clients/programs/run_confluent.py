"""confluent-kafka, that is librdkafka, in the scenarios of `common.py`."""

import signal
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType
)

import common
from common import equal, eventually, say

QUIET = {"log_level": 2, "fetch.wait.max.ms": 100}


def producer(bootstrap, **settings):
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 2, **settings})


def flushed(one):
    equal(one.flush(30), 0, "records not answered")


def consumer(bootstrap, group="by-hand", **settings):
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    given = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **QUIET}
    return Consumer({**given, "auto.offset.reset": "earliest", **settings})


def take(one, count, seconds=20):
    messages = []
    deadline = time.monotonic() + seconds
    while len(messages) < count and time.monotonic() < deadline:
        for message in one.consume(count - len(messages), 0.3):
            if message.error():
                raise KafkaException(message.error())
            messages.append(message)
    equal(len(messages), count, f"records within {seconds} s")
    return messages


def read(bootstrap, topic, count, offset=OFFSET_BEGINNING, **settings):
    one = consumer(bootstrap, **settings)
    try:
        one.assign([TopicPartition(topic, 0, offset)])
        return take(one, count)
    finally:
        one.close()


def scenarios(bootstrap, prefix):
    topic = lambda name: f"{prefix}-{name}"

    def stored(codec):
        one = producer(bootstrap, compression_type=codec)
        for number in range(common.RECORDS):
            one.produce(topic(f"stored-{codec}"), common.value(number), f"k{number}", partition=0)
        flushed(one)
        found = [(m.key(), m.value()) for m in read(bootstrap, topic(f"stored-{codec}"), common.RECORDS)]
        equal(found, [(b"k%d" % number, common.value(number)) for number in range(common.RECORDS)], "records")

    def shapes():
        one = producer(bootstrap)
        for key, value, headers in common.SHAPES:
            one.produce(topic("shapes"), value, key, partition=0, headers=headers)
        flushed(one)
        found = [(m.key(), m.value(), m.headers() or []) for m in read(bootstrap, topic("shapes"), len(common.SHAPES))]
        equal(found, common.SHAPES, "records")

    def keys():
        one = producer(bootstrap)
        for number in range(common.KEYS):
            one.produce(topic("keys"), b"%d" % number, b"key-%d" % number)
        flushed(one)

    def large():
        one = producer(bootstrap, message_max_bytes=4_000_000)
        one.produce(topic("large"), b"x" * common.LARGE, partition=0)
        flushed(one)
        equal(len(read(bootstrap, topic("large"), 1)[0].value()), common.LARGE, "bytes")

    def empty():
        one = consumer(bootstrap)
        one.assign([TopicPartition(topic("empty"), 0, OFFSET_BEGINNING)])
        equal(one.poll(0.7), None, "a record")
        equal(one.get_watermark_offsets(TopicPartition(topic("empty"), 0), 10), (0, 0), "the ends")
        one.close()

    def seek_by_time():
        one = producer(bootstrap)
        for value, time_ms in common.times():
            one.produce(topic("times"), value, partition=0, timestamp=time_ms)
        flushed(one)
        one = consumer(bootstrap)
        found = one.offsets_for_times([TopicPartition(topic("times"), 0, common.SOUGHT)], 10)
        equal(found[0].offset, 51, "offset by time")
        one.assign(found)
        equal(take(one, 1)[0].value(), b"51", "the record there")
        one.close()

    def commits():
        def goes_on_at(expected, count):
            one = consumer(bootstrap, topic("commits"))
            one.subscribe([topic("times")])
            messages = take(one, count)
            equal(messages[0].offset(), expected, "where the group goes on")
            one.commit(message=messages[-1], asynchronous=False)
            one.close()

        goes_on_at(0, 40)
        goes_on_at(40, 5)
        one = consumer(bootstrap, topic("commits"))
        one.commit(offsets=[TopicPartition(topic("times"), 0, 10)], asynchronous=False)
        equal(one.committed([TopicPartition(topic("times"), 0)], 10)[0].offset, 10, "what was set")
        one.close()
        goes_on_at(10, 1)

    def regex():
        one = consumer(bootstrap, topic("regex"))
        one.subscribe([f"^{prefix}-regex-.*"])
        equal(sorted(m.value() for m in take(one, 2)), [b"regex-a", b"regex-b"], "records")
        one.close()

    def admin():
        one = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        made = topic("made")
        one.create_topics([NewTopic(made, 3, 1, config={"retention.ms": "60000"})])[made].result(10)
        partitions = lambda: len(one.list_topics(timeout=10).topics[made].partitions)
        eventually(lambda: made in one.list_topics(timeout=10).topics, True, "the topic is listed")
        equal(partitions(), 3, "partitions")
        resource = ConfigResource(ResourceType.TOPIC, made)
        equal(one.describe_configs([resource])[resource].result(10)["retention.ms"].value, "60000", "retention.ms")
        one.create_partitions([NewPartitions(made, 5)])[made].result(10)
        eventually(partitions, 5, "partitions after growing")
        one.delete_topics([made])[made].result(10)
        eventually(lambda: made in one.list_topics(timeout=10).topics, False, "the topic is listed after deletion")
        group = topic("commits")
        listed = [found.group_id for found in one.list_consumer_groups().result(10).valid]
        equal(group in listed, True, "the group is listed")
        equal(one.describe_consumer_groups([group])[group].result(10).state.name, "EMPTY", "state of the group")
        one.delete_consumer_groups([group])[group].result(10)
        listed = [found.group_id for found in one.list_consumer_groups().result(10).valid]
        equal(group in listed, False, "the group is listed after deletion")

    def settings():
        one = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        entry = ConfigEntry("retention.ms", "9000000000000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic("times"), incremental_configs=[entry])
        one.incremental_alter_configs([resource])[resource].result(10)
        resource = ConfigResource(ResourceType.TOPIC, topic("times"))
        found = lambda: one.describe_configs([resource])[resource].result(10)["retention.ms"].value
        eventually(found, "9000000000000", "retention.ms")
        # Release 2.3 deletes no records.
        if hasattr(one, "delete_records"):
            part = TopicPartition(topic("times"), 0, 20)
            (future,) = one.delete_records([part]).values()
            future.result(10)
            reads = consumer(bootstrap)
            equal(reads.get_watermark_offsets(part, 10)[0], 20, "the beginning")
            reads.close()

    functions = {f"stored as {codec}": lambda codec=codec: stored(codec) for codec in common.CODECS}
    functions |= {"shapes": shapes, "keys": keys, "large": large, "empty": empty, "seek by time": seek_by_time}
    return functions | {"commits": commits, "regex": regex, "admin": admin, "settings": settings}


def until_terminated():
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    return ended


def member(bootstrap, group, topic, instance, session):
    ended = until_terminated()
    settings = {} if instance == "-" else {"group_instance_id": instance}
    one = consumer(
        bootstrap, group, session_timeout_ms=int(session), heartbeat_interval_ms=500, enable_auto_commit=True,
        auto_commit_interval_ms=500, **settings,
    )
    show = lambda _, partitions: say("assigned", ",".join(str(part.partition) for part in partitions) or "-")
    one.subscribe([topic], on_assign=show, on_revoke=lambda *_: say("assigned -"))
    while not ended.is_set():
        for message in one.consume(100, 0.1):
            if not message.error():
                say("record", message.partition(), message.offset(), message.value().decode())
    one.close()


def copy(bootstrap, group, source, target, transaction):
    ended = until_terminated()
    one = consumer(bootstrap, group, isolation_level="read_committed", group_instance_id="copier", session_timeout_ms=15_000)
    sends = producer(bootstrap, transactional_id=transaction, linger_ms=0)
    sends.init_transactions(30)
    one.subscribe([source])
    while not ended.is_set():
        messages = [message for message in one.consume(20, 0.2) if not message.error()]
        if not messages:
            continue
        sends.begin_transaction()
        for message in messages:
            sends.produce(target, message.value(), partition=message.partition())
        sends.poll(0)
        time.sleep(0.05)
        positions = one.position(one.assignment())
        sends.send_offsets_to_transaction(positions, one.consumer_group_metadata(), 20)
        sends.commit_transaction(20)
        say("committed", len(messages))
    one.close()


if __name__ == "__main__":
    common.main(scenarios, member, copy)
    sys.exit(0)
