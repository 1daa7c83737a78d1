"""kcat in the scenarios of `common.py`."""

import os
import subprocess
import sys
import tempfile

import common
from common import NotThere, equal

QUIET = ["-X", "fetch.wait.max.ms=100"]


def scenarios(bootstrap, prefix):
    topic = lambda name: f"{prefix}-{name}"

    def kcat(*arguments, stdin=b""):
        done = subprocess.run(["kcat", "-b", bootstrap, *arguments], input=stdin, capture_output=True, timeout=30)
        equal((done.returncode, done.stderr.decode() if done.returncode else ""), (0, ""), "exit code and what it said")
        return done.stdout

    def read(name, *arguments):
        return kcat("-C", "-t", topic(name), "-o", "beginning", "-e", "-q", *QUIET, *arguments)

    def stored(codec):
        lines = b"".join(b"k%d|%s\n" % (number, common.value(number)) for number in range(common.RECORDS))
        codecs = [] if codec == "none" else ["-z", codec]
        kcat("-P", "-t", topic(f"stored-{codec}"), "-p", "0", "-K", "|", *codecs, stdin=lines)
        equal(read(f"stored-{codec}", "-f", "%k|%s\n"), lines, "records")

    def shapes():
        for key, value, headers in common.SHAPES:
            options = [word for name, given in headers for word in ("-H", name.encode() + b"=" + given)]
            with tempfile.NamedTemporaryFile() as file:
                if value and b"\n" in value:
                    # Not a line: a file is one value, whatever is in it.
                    file.write(value)
                    file.flush()
                    line, options = b"", options + ["-k", key, file.name]
                elif key is None:
                    line = value
                else:
                    # -Z makes what is empty null.
                    line, options = key + b"|" + (value or b""), options + ["-K", "|"] + ([] if value is not None else ["-Z"])
                kcat("-P", "-t", topic("shapes"), "-p", "0", *options, stdin=line)
        left, found = read("shapes", "-f", "%K %S %h\n%k%s\n"), []
        while left:
            # Lengths come first, since keys and values may hold anything; -1 is null.
            lengths, _, left = left.partition(b"\n")
            of_key, of_value, headers = lengths.split(b" ", 2)
            parts = []
            for length in [int(of_key), int(of_value)]:
                parts.append(None if length < 0 else left[:length])
                left = left[max(length, 0) :]
            pairs = [header.split(b"=") for header in headers.split(b",") if header]
            found.append((*parts, [(name.decode(), given) for name, given in pairs]))
            equal(left[:1], b"\n", "what ends a record")
            left = left[1:]
        equal(found, common.SHAPES, "records")

    def keys():
        lines = b"".join(b"key-%d|%d\n" % (number, number) for number in range(common.KEYS))
        kcat("-P", "-t", topic("keys"), "-K", "|", stdin=lines)

    def large():
        kcat("-P", "-t", topic("large"), "-p", "0", "-X", "message.max.bytes=4000000", stdin=b"x" * common.LARGE)
        equal(len(read("large", "-f", "%s")), common.LARGE, "bytes")

    def empty():
        equal(read("empty"), b"", "records")
        equal(kcat("-Q", "-t", topic("empty") + ":0:-1").split()[-1], b"0", "the end")

    def seek_by_time():
        # It gives no record a time of its own: the broker's are sought here.
        for value, _ in common.times():
            kcat("-P", "-t", topic("times"), "-p", "0", stdin=value) if value in (b"0", b"99") else None
        first, last = [int(time) for time in read("times", "-f", "%T\n").split()]
        equal(kcat("-Q", "-t", f"{topic('times')}:0:{first + 1}").split()[-1], b"1", "offset by time")
        found = kcat("-C", "-t", topic("times"), "-p", "0", "-o", f"s@{last}", "-e", "-q", "-f", "%s", *QUIET)
        equal(found, b"99", "the record there")

    def group_reads(name, subscription, count, *arguments):
        settings = ["-X", "auto.offset.reset=earliest", "-X", "enable.auto.offset.store=true", *QUIET]
        return kcat("-G", topic(name), *settings, "-c", str(count), "-q", "-f", "%o %s\n", *arguments, subscription).split(b"\n")

    def commits():
        lines = b"".join(b"%d\n" % number for number in range(2, 60))
        kcat("-P", "-t", topic("times"), "-p", "0", stdin=lines)
        equal(group_reads("commits", topic("times"), 40)[0].split()[0], b"0", "where the group begins")
        equal(group_reads("commits", topic("times"), 5)[0].split()[0], b"40", "where the group goes on")

    def regex():
        found = group_reads("regex", f"^{prefix}-regex-.*", 2)
        equal(sorted(line.split()[-1] for line in found if line), [b"regex-a", b"regex-b"], "records")

    def admin():
        raise NotThere("it has no administration")

    functions = {f"stored as {codec}": lambda codec=codec: stored(codec) for codec in common.CODECS}
    functions |= {"shapes": shapes, "keys": keys, "large": large, "empty": empty, "seek by time": seek_by_time}
    return functions | {"commits": commits, "regex": regex, "admin": admin, "settings": admin}


def member(bootstrap, group, topic, instance, session):
    settings = [f"session.timeout.ms={session}", "heartbeat.interval.ms=500", "auto.commit.interval.ms=500"]
    settings += ["auto.offset.reset=earliest", "fetch.wait.max.ms=100"]
    settings += [] if instance == "-" else [f"group.instance.id={instance}"]
    options = [word for setting in settings for word in ("-X", setting)]
    # This process becomes kcat, so that signals reach it.
    os.execvp("kcat", ["kcat", "-b", bootstrap, "-G", group, *options, "-u", "-f", "record %p %o %s\n", topic])


if __name__ == "__main__":
    common.main(scenarios, member)
    sys.exit(0)
