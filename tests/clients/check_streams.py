"""A real application: Kafka Streams counts words, exactly once, and is stopped and killed while it does."""

import queue
import signal
import subprocess
import threading
import time
from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support import Program, equal, require, text_lines

LINES = 20_000
PARTITIONS = 4


def main():
    program = Program("streams")
    settings = {"num_partitions": 1, "group_initial_rebalance_delay_ms": 0, "transaction_state_log_num_partitions": 5}
    broker = program.broker(**settings, offsets_topic_num_partitions=5).start()
    command = program.rows[0][2:]
    lines = text_lines(LINES, seed=11)
    program.check("the words are counted, over a stop and a kill -9", word_count, program, broker, command, lines)
    program.finish()


class Application:
    """The word count as a process."""

    def __init__(self, program, broker, command, run):
        self.states = queue.Queue()
        self.log = program.work / f"application-{run}.log"
        words = [broker.address, "word-count", "lines", "counts", str(program.work / "state")]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command + words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.states.put(line.decode().strip())

    def runs(self):
        deadline = time.monotonic() + 90
        while self.states.get(timeout=max(0.1, deadline - time.monotonic())) != "state RUNNING":
            pass

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        equal(self.process.wait(40), 0, "exit code of the application")

    def kill(self):
        self.process.kill()
        self.process.wait()


def word_count(program, broker, command, lines):
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [NewTopic("lines", PARTITIONS, 1), NewTopic("counts", PARTITIONS, 1)]
    for future in admin.create_topics(topics).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    third = len(lines) // 3

    def write(part):
        for number, line in enumerate(part):
            while True:
                try:
                    producer.produce("lines", line, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        equal(producer.flush(30), 0, "lines not answered")

    expected = Counter(word for line in lines for word in line.lower().split())
    applications = []
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "looks", "auto.offset.reset": "earliest",
         "enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition("counts", partition, 0) for partition in range(PARTITIONS)])
    seen = {}

    def read_until(enough, what):
        deadline = time.monotonic() + 180
        while not enough():
            require(time.monotonic() < deadline, f"{what}: {sum(seen.values())} of {sum(expected.values())} words are counted")
            for message in consumer.consume(5_000, 0.3):
                word, count = message.key().decode(), int.from_bytes(message.value(), "big")
                # A word counted twice, or not at all, leaves a step here.
                equal(count, seen.get(word, 0) + 1, f"the next count of {word!r}")
                seen[word] = count

    counted = lambda: sum(seen.values())
    try:
        write(lines[:third])
        applications.append(Application(program, broker, command, "first"))
        applications[-1].runs()
        read_until(lambda: counted() > 1_000, "the first words")
        applications[-1].stop()
        write(lines[third : 2 * third])
        applications.append(Application(program, broker, command, "second"))
        applications[-1].runs()
        before = counted()
        read_until(lambda: counted() > before + 20_000, "after the stop")
        applications[-1].kill()
        write(lines[2 * third :])
        applications.append(Application(program, broker, command, "third"))
        read_until(lambda: counted() >= sum(expected.values()), "after the kill")
        applications[-1].stop()
        # What is left would be too much.
        for message in consumer.consume(1_000, 2):
            require(False, f"one count more: {message.key()}")
        equal(seen, dict(expected), "counts")
    finally:
        for application in applications:
            application.kill()
        consumer.close()


