"""kill -9 in the middle of producing: every acknowledged record is there after the restart."""

import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from support import Program, equal, require, stored_batches

ROUNDS = 3


def main():
    program = Program("kill_nine")
    for acks in ["1", "all"]:
        broker = program.broker(f"acks-{acks}", num_partitions=2).start()
        for number in range(1, ROUNDS + 1):
            program.check(f"acks={acks}, kill {number} of {ROUNDS}", killed_while_producing, broker, acks, number)
        broker.kill()
    broker = program.broker("idempotent", num_partitions=1).start()
    program.check("an idempotent producer lives through it: once each, in order", idempotent, broker)
    program.finish()


class Load:
    """A producer on a thread of its own that notes what was acknowledged."""

    def __init__(self, broker, topic, partitions, **settings):
        self.acknowledged = {}
        self.sent = 0
        self.refused = 0
        self.topic = topic
        self.partitions = partitions
        self.stopping = False
        self.producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "linger.ms": 1,
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
                **settings,
            }
        )
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stopping:
            number = self.sent
            value = b"%012d" % number + b"." * (number % 500)
            partition = number % self.partitions
            try:
                self.producer.produce(self.topic, value, partition=partition, on_delivery=self.answered(number, value))
                self.sent += 1
                self.producer.poll(0)
            except BufferError:
                self.producer.poll(0.01)

    def answered(self, number, value):
        def report(error, message):
            if error:
                self.refused += 1
            else:
                self.acknowledged[(message.partition(), message.offset())] = value

        return report

    def wait_for(self, count, seconds=30):
        """Waits until so many records are acknowledged, and some in each partition."""
        deadline = time.monotonic() + seconds
        while len(self.acknowledged) < count or len({where for where, _ in list(self.acknowledged)}) < self.partitions:
            require(time.monotonic() < deadline, f"{len(self.acknowledged)} records acknowledged within {seconds} s, not {count}")
            time.sleep(0.005)

    def stop(self, flush_seconds):
        self.stopping = True
        self.thread.join()
        left = self.producer.flush(flush_seconds)
        if left:
            self.producer.purge()
            self.producer.flush(5)
        return left


def killed_while_producing(broker, acks, number):
    topic = f"round-{number}"
    # No retries: a record is acknowledged by its first answer or not at all, and in the middle of the load many are not.
    load = Load(broker, topic, 2, acks=acks, retries=0, **{"message.timeout.ms": 2_000})
    try:
        # The moment of the kill falls differently each round.
        load.wait_for(3_000 * number)
        broker.kill()
        # What is produced now is refused, so that the kill fell into the middle of the load.
        time.sleep(0.2)
    finally:
        load.stop(10)
        broker.restart()
    acknowledged = dict(load.acknowledged)
    require(load.refused > 0, "no record was refused although the broker was killed")
    for partition in range(2):
        stored = read_all(broker, topic, partition)
        equal(sorted(stored), list(range(len(stored))), f"offsets in {topic}-{partition}")
        promised = {offset: value for (where, offset), value in acknowledged.items() if where == partition}
        require(promised, f"nothing was acknowledged in partition {partition}")
        lost = [offset for offset, value in promised.items() if stored.get(offset) != value]
        require(not lost, f"{len(lost)} of {len(promised)} acknowledged records are lost, the first at offset {min(lost, default=0)}")


def idempotent(broker):
    load = Load(broker, "once", 1, **{"enable.idempotence": True, "message.timeout.ms": 60_000})
    try:
        for number in range(1, ROUNDS + 1):
            load.wait_for(3_000 * number)
            broker.kill()
            broker.start()
        load.wait_for(3_000 * (ROUNDS + 1))
    finally:
        left = load.stop(60)
    equal((left, load.refused), (0, 0), "records unanswered and refused")
    stored = read_all(broker, "once", 0)
    numbers = [int(stored[offset][:12]) for offset in sorted(stored)]
    require(numbers == list(range(load.sent)), f"{load.sent} records were sent, {len(numbers)} are stored: not once each in order")
    equal({offset: value for (_, offset), value in load.acknowledged.items()}, stored, "acknowledged and stored")


def read_all(broker, topic, partition):
    """Everything in a partition by offset, up to its high watermark."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reads-all", "enable.auto.commit": False, "check.crcs": True})
    records = {}
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 20)
        on_disk = sum(count for _, count, _ in stored_batches(broker.partition(topic, partition)))
        equal(end, on_disk, f"high watermark of {topic}-{partition} and the records in its files")
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + 30
        while len(records) < end:
            require(time.monotonic() < deadline, f"only {len(records)} of {end} records came back")
            for message in consumer.consume(10_000, 0.5):
                require(message.error() is None, str(message.error()))
                records[message.offset()] = message.value()
    finally:
        consumer.close()
    return records
