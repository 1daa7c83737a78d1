#!/bin/bash
# Runs one suite against a broker that is already up. `cargo xtask soak suites` does so for all, with a broker.
#
#   run.sh SUITE BOOTSTRAP        SUITE: kcat java-tools franz-go sarama kafka-python rskafka librdkafka
#
# One line per test on stdout (PASS|FAIL|SKIP name -- reason), then "N passed, M failed, K skipped".
# Exit status: 0 nothing failed, 1 something failed, 2 the suite could not be run.
#
#   SUITES_CACHE   sources, builds, and below work/ the logs of the latest run (required)
#   SUITES_ONLY    extended regex: only tests with a matching name
#   KAFKA_LIBS     directory with Apache Kafka's jars, for java-tools and librdkafka (`cargo xtask install kafka` gets them)
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
[ $# -eq 2 ] || { sed -n '2,/^HERE=/{/^#/p}' "$0" >&2; exit 2; }
SUITE=$1 BOOTSTRAP=$2
[[ $SUITE =~ ^(kcat|java-tools|franz-go|sarama|kafka-python|rskafka|librdkafka)$ ]] || die "no suite '$SUITE'"
[[ $BOOTSTRAP =~ ^[^:,]+:[0-9]+$ ]] || die "BOOTSTRAP is one host:port, not '$BOOTSTRAP'"
CACHE=$(realpath -m "${SUITES_CACHE:?a directory for sources, builds and logs}")
WORK=$CACHE/work/$SUITE
RUN_ID=$(date +%s)$RANDOM
export SUITE BOOTSTRAP HERE CACHE WORK RUN_ID
rm -rf "$WORK"; mkdir -p "$WORK"
start=$SECONDS
. "$HERE/$SUITE.sh"
say "$SUITE took $((SECONDS-start)) s; logs in $WORK"
summary
