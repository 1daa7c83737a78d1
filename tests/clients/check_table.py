"""Many clients in the same scenarios, all on one broker: a table of client, version, what ran and how it ended.

A client's program prints `ok NAME`, `FAILED NAME: why` or `none NAME: why` for what it can do by itself; in groups and in
copies its processes are members, which this program starts, kills and counts. What a client cannot do at all is in
`docs/clients.md`, and only that. `tests/clients/programs/common.py` says what a program is asked.
"""

import concurrent.futures
import pathlib
import queue
import re
import signal
import subprocess
import threading
import time
import zlib

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from programs import common
from support import CheckFailed, Program, equal, require, require_codec

# A client without a heartbeat for so long is taken for dead. One with a name of its own is waited for longer: the time
# in which it comes back.
SESSION_MS = 4_000
NAMED_SESSION_MS = 20_000
PARTITIONS = 6
COPIED = 400
DOCUMENTATION = pathlib.Path("docs/clients.md")


def main():
    program = Program("table")
    clients = [Client(program, row) for row in program.rows]
    settings = {"num_partitions": 1, "group_initial_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 1_000}
    broker = program.broker(**settings).start()
    feed = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 2})
    for client in clients:
        prepare(broker, client, feed)
    require(feed.flush(30) == 0, "the records to read are not stored")
    # Members mostly wait for each other, so several clients are at it at once.
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        work = [(client, run) for run in (alone, group, copy) for client in clients]
        for done in [pool.submit(run, broker, client) for client, run in work]:
            done.result()
    program.check("a client that is not there fails by its name in every scenario", not_there, broker)
    print_table(clients)
    program.finish()


class Client:
    """One row of the table."""

    def __init__(self, program, row):
        self.program = program
        self.name, self.version, self.command = row[0], row[1], row[2:]
        self.prefix = f"{self.name}-{self.version}"
        self.gaps = gaps(self)
        self.outcomes = {}

    def __str__(self):
        return f"{self.name} {self.version}"

    def topic(self, name):
        return f"{self.prefix}-{name}"

    def check(self, scenario, function, *arguments):
        def held():
            function(*arguments)
            return True

        self.outcomes[scenario] = "ok" if self.program.check(f"{self}: {scenario}", held) else "FAILED"
        return self.outcomes[scenario] == "ok"

    def lacks(self, scenario):
        """Whether the documentation says that the client has no such thing."""
        if why := self.gaps.get(scenario):
            print(f"{self}: no {scenario}: {why}", flush=True)
            self.outcomes[scenario] = "-"
        return why is not None


def gaps(client):
    """What the documentation says that the client does not have, with the reasons."""
    _, _, rows = DOCUMENTATION.read_text().partition("| client | does not have | because |\n|---|---|---|\n")
    require(rows, f"{DOCUMENTATION} has no table of what clients do not have")
    found = {}
    for row in rows.partition("\n\n")[0].splitlines():
        name, scenarios, why = [cell.strip() for cell in row.strip("|").split("|")]
        if name in (client.name, str(client)):
            found |= {scenario: why for scenario in scenarios.split(", ")}
    return found


def prepare(broker, client, feed):
    """The client's topics, and what it is to find in some of them."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    partitions = {"keys": 4, "group": PARTITIONS, "source": 3, "target": 3}
    names = [f"stored-{codec}" for codec in common.CODECS] + ["shapes", "keys", "large", "empty", "times", "regex-a", "regex-b"]
    topics = [NewTopic(client.topic(name), partitions.get(name, 1), 1) for name in names + ["group", "source", "target"]]
    for topic in topics:
        # Records with times of long ago are to stay.
        topic.config = {"max.message.bytes": "4000000", "retention.ms": "-1"}
    for future in admin.create_topics(topics).values():
        future.result(30)
    for name in ["regex-a", "regex-b"]:
        feed.produce(client.topic(name), name.encode(), partition=0)
    for number in range(COPIED):
        feed.produce(client.topic("source"), b"%d" % number, partition=number % 3)


def alone(broker, client):
    """What the client does in one process."""
    command = client.command + ["scenarios", broker.address, client.prefix]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        said = done.stdout.decode(errors="replace").splitlines()
        errors = done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace").splitlines()
        errors = "it did not end within 120 s; " + (error.stderr or b"").decode(errors="replace")
    except OSError as error:
        said, errors = [], f"it cannot be started: {error}"
    told = {}
    for line in said:
        if match := re.fullmatch(r"(ok|FAILED|none) ([^:]+)(?:: (.*))?", line):
            told[match[2]] = (match[1], match[3] or "")
    for scenario in common.SCENARIOS:
        outcome, why = told.get(scenario, ("FAILED", f"the client's program said nothing of it: {errors[-600:]}"))
        if outcome != "none" or not client.lacks(scenario):
            client.check(scenario, hold, broker, client, scenario, outcome, why)


def hold(broker, client, scenario, outcome, why):
    """The client says that all is well, and what it wrote looks so from outside."""
    require(outcome != "none", f"the client is said to have no such thing ({why}), which {DOCUMENTATION} does not know")
    require(scenario not in client.gaps, f"{DOCUMENTATION} says that the client has no such thing: {client.gaps.get(scenario)}")
    require(outcome == "ok", why)
    if scenario.startswith("stored as "):
        codec = scenario.removeprefix("stored as ")
        require_codec(broker, client.topic(f"stored-{codec}"), codec, common.RECORDS)
    elif scenario == "shapes":
        found = [(m.key(), m.value(), m.headers() or []) for m in read(broker, client.topic("shapes"), 1, len(common.SHAPES))]
        # rskafka's headers are a map: the last of two with one name.
        twice = [("name", b"2")] if client.name == "rskafka" else common.SHAPES[0][2]
        equal(found, [(*common.SHAPES[0][:2], twice)] + common.SHAPES[1:], "records")
    elif scenario == "keys":
        keys_are_where_they_belong(broker, client)


def read(broker, topic, partitions, count, isolation="read_uncommitted"):
    """All records of a topic once there are so many, by librdkafka."""
    settings = {"bootstrap.servers": broker.address, "group.id": "looks", "enable.auto.commit": False, "log_level": 2}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "isolation.level": isolation, "fetch.wait.max.ms": 100})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        records = []
        deadline = time.monotonic() + 30
        # Once all are there, more may follow that should not.
        while len(records) < count and time.monotonic() < deadline:
            records += consumer.consume(count, 0.3)
        return records + consumer.consume(count + 1, 0.5)
    finally:
        consumer.close()


def keys_are_where_they_belong(broker, client):
    belongs = PARTITIONERS[client.name]
    records = read(broker, client.topic("keys"), 4, common.KEYS)
    equal(len(records), common.KEYS, "records")
    for record in records:
        equal(record.partition(), belongs(record.key()) % 4, f"partition of {record.key()}")


def murmur2(key):
    """Java's: what Kafka's own clients, and those that follow them, divide keys by."""
    mask = 0xFFFFFFFF
    value = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 & mask
        word = (word ^ word >> 24) * 0x5BD1E995 & mask
        value = value * 0x5BD1E995 & mask ^ word
    if rest := key[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & mask
    value = (value ^ value >> 13) * 0x5BD1E995 & mask
    return (value ^ value >> 15) & 0x7FFFFFFF


def fnv1a(key):
    """sarama's: the hash as a signed number, and what is left of it without its sign."""
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value if value < 1 << 31 else (1 << 32) - value


PARTITIONERS = {
    "kcat": zlib.crc32,
    "confluent-kafka": zlib.crc32,
    "kafka-python": murmur2,
    "aiokafka": murmur2,
    "java": murmur2,
    "franz-go": murmur2,
    "sarama": fnv1a,
    "kafkajs": murmur2,
}


class Judge:
    """What a client's checks come to, where they are to fail."""

    def __init__(self):
        self.failures = {}

    def check(self, name, function, *arguments):
        try:
            return function(*arguments)
        except Exception as error:
            self.failures[name] = str(error)


def not_there(broker):
    """A program that is not on the machine is no gap of its client's and no end of the others' checks."""
    judge = Judge()
    client = Client(judge, ["nobody", "1.0", "/not/there/nobody"])
    for run in (alone, group, copy):
        run(broker, client)
    equal(set(judge.failures), {f"nobody 1.0: {scenario}" for scenario in common.SCENARIOS + ["group", "copy"]}, "failures")
    for scenario, why in judge.failures.items():
        require("/not/there/nobody" in why, f"{scenario} does not say what is missing: {why}")
    equal(set(client.outcomes.values()), {"FAILED"}, "outcomes")


class Member:
    """A process that is a member of a group. It prints `assigned P,P` (all it has now), `record P OFFSET VALUE` and, if it
    copies, `committed COUNT`."""

    def __init__(self, broker, client, *arguments):
        self.client = client
        self.events = queue.Queue()
        self.assigned = set()
        self.assignments = 0
        self.values = set()
        self.committed = 0
        self.said = []
        command = client.command + [arguments[0], broker.address] + [str(argument) for argument in arguments[1:]]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        # All that it says, for whoever looks for a reason.
        self.log = open(client.program.work / f"{client.prefix}-{self.process.pid}.log", "wb")
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()

    def listen(self):
        for line in self.process.stdout:
            self.log.write(line)
            line = line.decode(errors="replace").strip()
            kind, _, rest = line.partition(" ")
            if kind == "record":
                self.values.add(rest.split(" ", 2)[2])
            elif kind == "assigned":
                self.assigned = {int(partition) for partition in rest.split(",") if partition not in ("", "-")}
                self.assignments += 1
            elif kind == "committed":
                self.committed += int(rest)
            # kcat has its own words.
            elif match := re.match(r"% Group .* rebalanced .*: (assigned|revoked): (.*)", line):
                taken = {int(partition) for partition in re.findall(r"\[(\d+)\]", match[2])}
                self.assigned = taken if match[1] == "assigned" else set()
                self.assignments += match[1] == "assigned"
            else:
                self.said = self.said[-30:] + [line]
        self.log.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(10)

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise CheckFailed(f"a member did not leave when asked to: {self.tail()}") from error
        require(code == 0, f"a member that was asked to leave ended with {code}: {self.tail()}")
        self.reader.join(10)

    def tail(self):
        return " / ".join(self.said[-6:])


def wait(condition, members, why, seconds=40):
    deadline = time.monotonic() + seconds
    while not condition():
        for member in members:
            require(member.process.poll() is None, f"{why}: a member ended with {member.process.returncode}: {member.tail()}")
        state = [sorted(member.assigned) for member in members]
        tails = [member.tail() for member in members]
        require(time.monotonic() < deadline, f"{why}: members have {state}; they said {tails}")
        time.sleep(0.05)


def shared(members):
    """Whether the members have all partitions between them, each at least one and none two."""
    parts = [member.assigned for member in members]
    return all(parts) and sum(map(len, parts)) == PARTITIONS and set().union(*parts) == set(range(PARTITIONS))


class Feed(threading.Thread):
    """Writes numbers into the group's topic for as long as its members change."""

    def __init__(self, broker, topic):
        super().__init__(daemon=True)
        self.producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 2})
        self.topic = topic
        self.sent = 0
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(0.02):
            self.producer.produce(self.topic, b"%d" % self.sent, partition=self.sent % PARTITIONS)
            self.producer.poll(0)
            self.sent += 1

    def finish(self):
        self.ended.set()
        self.join()
        require(self.producer.flush(20) == 0, "not all records are stored")


def group(broker, client):
    if client.lacks("group"):
        for scenario in ["back by name", "group reads all"]:
            client.lacks(scenario)
        return
    name = client.topic("members")
    topic = client.topic("group")
    members = []
    feed = Feed(broker, topic)

    def member(instance="-", session=SESSION_MS):
        members.append(Member(broker, client, "member", name, topic, instance, session))
        return members[-1]

    def changes():
        feed.start()
        first = member()
        wait(lambda: shared([first]), [first], "one member has not got all partitions")
        second = member()
        wait(lambda: shared([first, second]), [first, second], "two members do not share")
        third = member()
        wait(lambda: shared([first, second, third]), [first, second, third], "three members do not share")
        second.leave()
        wait(lambda: shared([first, third]), [first, third], "what a member left is not shared")
        first.kill()
        wait(lambda: shared([third]), [third], "what a killed member had is not given to who is left")

    def returns():
        (stays,) = [member for member in members if member.process.poll() is None]
        named = member("named", NAMED_SESSION_MS)
        wait(lambda: shared([stays, named]), [stays, named], "a member with a name does not share")
        had, before = named.assigned, stays.assignments
        named.kill()
        again = member("named", NAMED_SESSION_MS)
        wait(lambda: shared([stays, again]), [stays, again], "who comes back by name does not share")
        equal(again.assigned, had, "partitions of who came back by name")
        equal(stays.assignments, before, "how often the other was given partitions")

    def all_is_read():
        feed.finish()
        left = [member for member in members if member.process.poll() is None]
        everything = {str(number) for number in range(feed.sent)}
        missing = lambda: everything.difference(*[member.values for member in members])
        # kcat drops the record that it takes while it is told to end, and commits it.
        allowed = 1 if client.name == "kcat" else 0
        try:
            wait(lambda: len(missing()) <= allowed, left, "not every record was read")
        except CheckFailed as error:
            raise CheckFailed(f"{error}; of {feed.sent} these are missing: {sorted(map(int, missing()))}") from error
        for member in left:
            member.leave()
        ends = {partition: len(range(partition, feed.sent, PARTITIONS)) for partition in range(PARTITIONS)}
        equal(committed(broker, name, topic), ends, "offsets committed when all had left")

    try:
        if client.check("group", changes):
            if not client.lacks("back by name"):
                client.check("back by name", returns)
            client.check("group reads all", all_is_read)
    finally:
        feed.ended.set()
        for one in members:
            one.kill()


def committed(broker, name, topic):
    admin = AdminClient({"bootstrap.servers": broker.address})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
    return {part.partition: part.offset for part in future.result(10).topic_partitions if part.topic == topic}


def copy(broker, client):
    """From topic to topic in transactions, with kill -9 in the middle: each record arrives once, in its order."""
    if client.lacks("copy"):
        return
    source, target = client.topic("source"), client.topic("target")
    name = client.topic("copiers")

    def pipeline():
        copiers = []
        try:
            for _ in range(3):
                copier = Member(broker, client, "copy", name, source, target, client.topic("transaction"))
                copiers.append(copier)
                done = sum(copier.committed for copier in copiers)
                enough = min(done + COPIED // 5, COPIED)
                wait(lambda: sum(copier.committed for copier in copiers) >= enough, [copier], "the copy does not go on")
                copier.kill()
            copier = Member(broker, client, "copy", name, source, target, client.topic("transaction"))
            copiers.append(copier)
            ends = {partition: len(range(partition, COPIED, 3)) for partition in range(3)}
            arrived = lambda: committed(broker, name, source)
            wait(lambda: arrived() == ends, [copier], "not everything is copied")
            copier.leave()
        finally:
            for copier in copiers:
                copier.kill()
        found = [(record.partition(), int(record.value())) for record in read(broker, target, 3, COPIED, "read_committed")]
        for partition in range(3):
            values = [value for at, value in found if at == partition]
            equal(values, list(range(partition, COPIED, 3)), f"what was copied to partition {partition}")

    client.check("copy", pipeline)


def print_table(clients):
    columns = common.SCENARIOS + common.RUNNER_SCENARIOS
    print("\n| client | version | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for client in clients:
        outcomes = [client.outcomes.get(column, "?") for column in columns]
        print(f"| {client.name} | {client.version} | " + " | ".join(outcomes) + " |")
    print(flush=True)
