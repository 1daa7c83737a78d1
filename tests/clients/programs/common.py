"""What every client's program is asked, in whatever language it is written, and what the Python ones share.

    PROGRAM scenarios BOOTSTRAP PREFIX                      all of `SCENARIOS`, a line each: `ok NAME`, `FAILED NAME: why`,
                                                            or `none NAME: why` if the client has no such thing
    PROGRAM member BOOTSTRAP GROUP TOPIC INSTANCE SESSION   a member of a group, with a name unless INSTANCE is `-`, that
                                                            prints `assigned P,P` at each change (all that it has then) and
                                                            `record P OFFSET VALUE`, commits now and then and leaves on SIGTERM
    PROGRAM copy BOOTSTRAP GROUP FROM TO TRANSACTION        copies in transactions of at most 20 records, each to the
                                                            partition it comes from, and prints `committed COUNT`

The topics are `PREFIX-NAME` and there already. Scenarios, with what each is to do:

    stored as CODEC   writes `value(number)` under `k<number>` to `stored-CODEC` and reads it back
    shapes            writes `SHAPES` to `shapes` and reads it back
    keys              writes numbers under `key-<number>`, left to the client's own partitioner, to `keys`
    large             writes and reads one value of `LARGE` bytes in `large`
    empty             reads nothing in `empty`, whose ends are both 0
    seek by time      writes numbers with times to `times`, and reads on from the first at or after a time: 51
    commits           reads 40 of `times` in a group, commits, goes on at 40 as another member; sets 10, goes on at 10
    regex             reads what is in the topics that match `PREFIX-regex-.*`, by subscribing to the expression
    admin             makes, lists, describes, grows and deletes a topic; lists, describes and deletes a group
    settings          sets `retention.ms` of `times` to 9000000000000 and finds it so; deletes its records before 20, where it begins then
"""

import sys
import time
import traceback

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SCENARIOS = [f"stored as {codec}" for codec in CODECS]
SCENARIOS += ["shapes", "keys", "large", "empty", "seek by time", "commits", "regex", "admin", "settings"]
# What `check_table.py` does with several processes.
RUNNER_SCENARIOS = ["group", "back by name", "group reads all", "copy"]

RECORDS = 300
KEYS = 200
LARGE = 3_000_000
FIRST_TIME = 1_700_000_000_000

SHAPES = [
    (b"key", b"value", [("name", b"1"), ("name", b"2")]),
    (b"", b"", []),
    (None, b"no key", []),
    (b"gone", None, []),
    ("schlüssel".encode(), bytes(range(256)), [("größe", "高".encode())]),
    (b"last", b"with an empty header", [("empty", b"")]),
]


def value(number):
    """Text that shrinks in any codec."""
    return f"record {number} ".encode() * (number % 20 + 4)


def times():
    """Value and time of each record of `times`: the time of 51 is the first at or after `SOUGHT`."""
    return [(b"%d" % number, FIRST_TIME + 1_000 * number) for number in range(100)]


SOUGHT = FIRST_TIME + 50_500


class NotThere(Exception):
    """The client has no such thing, and why."""


def equal(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: found {shorten(found)}, expected {shorten(expected)}")


def eventually(ask, expected, what, seconds=10):
    """Kafka makes, grows, changes and deletes topics by and by."""
    deadline = time.monotonic() + seconds
    while ask() != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    equal(ask(), expected, what)


def shorten(thing):
    text = repr(thing)
    return text if len(text) <= 200 else f"{text[:150]}... ({len(text)} characters)"


def say(*words):
    print(*words, flush=True)


def main(scenarios, member, copy=None):
    """Runs what the command line asks for. `scenarios` makes, of the bootstrap address and the prefix, functions by name."""
    kind, bootstrap, *rest = sys.argv[1:]
    if kind == "scenarios":
        functions = scenarios(bootstrap, *rest)
        for name in SCENARIOS:
            try:
                functions[name]()
            except NotThere as why:
                say(f"none {name}: {why}")
            except Exception as error:
                traceback.print_exc()
                say(f"FAILED {name}: {type(error).__name__}: {' '.join(str(error).split())}")
            else:
                say(f"ok {name}")
    else:
        {"member": member, "copy": copy}[kind](bootstrap, *rest)
