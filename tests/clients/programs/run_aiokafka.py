"""aiokafka in the scenarios of `common.py`."""

import asyncio
import re
import signal
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import OffsetAndMetadata

import common
from common import equal, say


async def send(bootstrap, topic, records, **settings):
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20, **settings) as producer:
        futures = [await producer.send(topic, **record) for record in records]
        await asyncio.gather(*futures)


def consumer(bootstrap, *topics, group=None, **settings):
    given = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **settings}
    return AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, group_id=group, **given)


async def take(one, count, seconds=20):
    records = []
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while len(records) < count and loop.time() < deadline:
        for batch in (await one.getmany(timeout_ms=300, max_records=count - len(records))).values():
            records += batch
    equal(len(records), count, f"records within {seconds} s")
    return records


async def read(bootstrap, topic, count, **settings):
    async with consumer(bootstrap, **settings) as one:
        one.assign([TopicPartition(topic, 0)])
        await one.seek_to_beginning()
        return await take(one, count)


def scenarios(bootstrap, prefix):
    topic = lambda name: f"{prefix}-{name}"

    async def stored(codec):
        name = topic(f"stored-{codec}")
        expected = [(b"k%d" % number, common.value(number)) for number in range(common.RECORDS)]
        records = [{"key": key, "value": value, "partition": 0} for key, value in expected]
        await send(bootstrap, name, records, compression_type=None if codec == "none" else codec)
        equal([(record.key, record.value) for record in await read(bootstrap, name, common.RECORDS)], expected, "records")

    async def shapes():
        records = [{"key": key, "value": value, "headers": headers, "partition": 0} for key, value, headers in common.SHAPES]
        await send(bootstrap, topic("shapes"), records)
        found = [(r.key, r.value, list(r.headers)) for r in await read(bootstrap, topic("shapes"), len(common.SHAPES))]
        equal(found, common.SHAPES, "records")

    async def keys():
        records = [{"key": b"key-%d" % number, "value": b"%d" % number} for number in range(common.KEYS)]
        await send(bootstrap, topic("keys"), records)

    async def large():
        record = {"value": b"x" * common.LARGE, "partition": 0}
        await send(bootstrap, topic("large"), [record], max_request_size=4_000_000)
        found = await read(bootstrap, topic("large"), 1, max_partition_fetch_bytes=4_000_000)
        equal(len(found[0].value), common.LARGE, "bytes")

    async def empty():
        part = TopicPartition(topic("empty"), 0)
        async with consumer(bootstrap) as one:
            one.assign([part])
            equal(await one.getmany(timeout_ms=700), {}, "records")
            ends = (await one.beginning_offsets([part]))[part], (await one.end_offsets([part]))[part]
            equal(ends, (0, 0), "the ends")

    async def seek_by_time():
        records = [{"value": value, "timestamp_ms": time_ms, "partition": 0} for value, time_ms in common.times()]
        await send(bootstrap, topic("times"), records)
        part = TopicPartition(topic("times"), 0)
        async with consumer(bootstrap) as one:
            one.assign([part])
            offset = (await one.offsets_for_times({part: common.SOUGHT}))[part].offset
            equal(offset, 51, "offset by time")
            one.seek(part, offset)
            equal((await take(one, 1))[0].value, b"51", "the record there")

    async def commits():
        part = TopicPartition(topic("times"), 0)

        async def goes_on_at(expected, count):
            async with consumer(bootstrap, topic("times"), group=topic("commits")) as one:
                records = await take(one, count)
                equal(records[0].offset, expected, "where the group goes on")
                await one.commit({part: OffsetAndMetadata(records[-1].offset + 1, "so far")})

        await goes_on_at(0, 40)
        await goes_on_at(40, 5)
        async with consumer(bootstrap, group=topic("commits")) as one:
            one.assign([part])
            await one.commit({part: 10})
            equal(await one.committed(part), 10, "what was set")
        await goes_on_at(10, 1)

    async def regex():
        async with consumer(bootstrap, group=topic("regex")) as one:
            one.subscribe(pattern=f"^{re.escape(prefix)}-regex-.*")
            equal(sorted(record.value for record in await take(one, 2)), [b"regex-a", b"regex-b"], "records")

    async def admin():
        one = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await one.start()
        try:
            made, group = topic("made"), topic("commits")
            await one.create_topics([NewTopic(made, 3, 1, topic_configs={"retention.ms": "60000"})])
            await eventually(lambda: listed(one, made), True, "the topic is listed")
            await one.create_partitions({made: NewPartitions(5)})
            await eventually(lambda: partitions(one, made), 5, "partitions after growing")
            await one.delete_topics([made])
            await eventually(lambda: listed(one, made), False, "the topic is listed after deletion")
            equal(group in [found[0] for found in await one.list_consumer_groups()], True, "the group is listed")
            described = await one.describe_consumer_groups([group])
            equal(described[0].groups[0][2], "Empty", "state of the group")
        finally:
            await one.close()

    async def settings():
        one = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await one.start()
        try:
            await one.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic("times"), {"retention.ms": "9000000000000"})])
            await eventually(lambda: described(one), True, "it is described")
            part = TopicPartition(topic("times"), 0)
            await one.delete_records({part: RecordsToDelete(before_offset=20)})
            async with consumer(bootstrap) as reads:
                equal((await reads.beginning_offsets([part]))[part], 20, "the beginning")
        finally:
            await one.close()

    async def described(one):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic("times"), {"retention.ms": None})
        return "'9000000000000'" in str(await one.describe_configs([resource]))

    async def partitions(one, name):
        return len((await one.describe_topics([name]))[0]["partitions"])

    async def listed(one, name):
        return name in await one.list_topics()

    async def eventually(ask, expected, what):
        for _ in range(50):
            if await ask() == expected:
                return
            await asyncio.sleep(0.1)
        equal(await ask(), expected, what)

    functions = {f"stored as {codec}": lambda codec=codec: stored(codec) for codec in common.CODECS}
    functions |= {"shapes": shapes, "keys": keys, "large": large, "empty": empty, "seek by time": seek_by_time}
    functions |= {"commits": commits, "regex": regex, "admin": admin, "settings": settings}
    return {name: lambda function=function: asyncio.run(function()) for name, function in functions.items()}


def until_terminated():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    return ended


def member(bootstrap, group, topic, instance, session):
    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked):
            say("assigned -")

        async def on_partitions_assigned(self, assigned):
            say("assigned", ",".join(str(part.partition) for part in assigned) or "-")

    async def run():
        ended = until_terminated()
        settings = {} if instance == "-" else {"group_instance_id": instance}
        one = consumer(
            bootstrap, group=group, session_timeout_ms=int(session), heartbeat_interval_ms=500, enable_auto_commit=True,
            auto_commit_interval_ms=500, **settings,
        )
        one.subscribe([topic], listener=Listener())
        async with one:
            while not ended.is_set():
                for batch in (await one.getmany(timeout_ms=100)).values():
                    for record in batch:
                        say("record", record.partition, record.offset, record.value.decode())

    asyncio.run(run())


def copy(bootstrap, group, source, target, transaction):
    async def run():
        ended = until_terminated()
        settings = {"isolation_level": "read_committed", "group_instance_id": "copier", "session_timeout_ms": 15_000}
        one = consumer(bootstrap, source, group=group, **settings)
        sends = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transaction)
        async with sends, one:
            while not ended.is_set():
                batches = await one.getmany(timeout_ms=200, max_records=20)
                if not batches:
                    continue
                async with sends.transaction():
                    for part, records in batches.items():
                        for record in records:
                            await sends.send(target, record.value, partition=part.partition)
                    await asyncio.sleep(0.05)
                    positions = {part: records[-1].offset + 1 for part, records in batches.items()}
                    await sends.send_offsets_to_transaction(positions, group)
                say("committed", sum(map(len, batches.values())))

    asyncio.run(run())


if __name__ == "__main__":
    common.main(scenarios, member, copy)
    sys.exit(0)
