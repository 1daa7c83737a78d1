#!/usr/bin/env bash
# Highwater and Apache Kafka 4.1 under the same load, one after the other, turn by turn, on this machine.
#
#   benches/compare.sh [TURNS]
#
# Each turn starts a broker on an empty directory, warms it up, and runs benches/rawload.py: 100 × 1 KiB with 8 in flight
# and acks=all, single records of 100 bytes with 8 in flight, and fetches of 1 MiB. It also prints the memory the broker
# holds when idle and after the load, and how long it took to answer. Kafka's settings are its defaults, with 1 GiB heap.
# The data lie below cargo's target directory.
set -euo pipefail
cd "$(dirname "$0")/.."

turns=${1:-3}
libs=$(cargo xtask install kafka | tail -n 1)
cargo build --quiet --release --package highwater-broker
target=$(dirname "$(dirname "$libs")")
highwater=$target/release/highwater
work=$target/compare
rm -rf "$work"
mkdir -p "$work"
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true' EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

now_ms() { date +%s%3N; }

answers() {
    python3 - "$1" <<'P'
import socket, struct, sys
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=2) as s:
        s.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        sys.exit(0 if len(s.recv(64)) > 8 else 1)
except OSError:
    sys.exit(1)
P
}

start_highwater() {
    "$highwater" serve --listen "127.0.0.1:$port" --data-dir "$1/data" >"$1/out" 2>"$1/log" &
    pid=$!
    until grep -q '^ready: ' "$1/out"; do kill -0 "$pid" && sleep 0.005; done
    grep '^ready: ' "$1/out"
}

start_kafka() {
    cat >"$1/server.properties" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$1/data
offsets.topic.replication.factor=1
P
    java -Xmx256m -cp "$libs/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$1/server.properties" \
        >"$1/format" 2>&1
    local begin
    begin=$(now_ms)
    java -Xmx1g -Xms1g -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 \
        -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$libs/*" kafka.Kafka "$1/server.properties" >"$1/log" 2>&1 &
    pid=$!
    until answers "$port"; do kill -0 "$pid" && sleep 0.02; done
    echo "answers after $(($(now_ms) - begin)) ms"
}

resident() { echo "resident: $(awk '/^VmRSS/ { printf "%.0f MB", $2 / 1024 }' "/proc/$pid/status") $1"; }

load() { python3 benches/rawload.py "$@"; }

for turn in $(seq "$turns"); do
    for broker in highwater kafka; do
        echo "== turn $turn: $broker"
        directory=$work/$broker
        rm -rf "$directory"
        mkdir -p "$directory"
        port=$(free_port)
        "start_$broker" "$directory"
        sleep 1
        resident "idle"
        # Topics are made by their first use: until each has a leader the load is refused.
        for topic in batches records; do
            for _ in $(seq 100); do
                kcat -b "127.0.0.1:$port" -L -t "$topic" >/dev/null 2>&1
                load produce "127.0.0.1:$port" "$topic" --megabytes 0.1 >/dev/null 2>&1 && break
                sleep 0.1
            done
        done
        # A virtual machine compiles what is hot only after a while; both are given the same.
        load produce "127.0.0.1:$port" batches --megabytes 500 >/dev/null
        load produce "127.0.0.1:$port" batches --megabytes 2000
        load produce "127.0.0.1:$port" records --records 1 --size 100 --megabytes 5
        load fetch "127.0.0.1:$port" batches --megabytes 2000
        resident "after the load"
        kill -9 "$pid"
        wait "$pid" 2>/dev/null || true
        pid=
        rm -rf "$directory/data"
    done
done
