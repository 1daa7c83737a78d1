# librdkafka's own tests, as its package for Node.js brings them (Debian's and crates.io's have none). Sourced by run.sh.
need npm tar make gcc g++ python3 java
version=1.10.1 # of @confluentinc/kafka-javascript, with librdkafka 2.15.1
SRC=$CACHE/librdkafka-$version
bin=$SRC/tests/test-runner
prepare() {
  set -e
  rm -rf "$SRC"; mkdir -p "$SRC"; cd "$SRC"
  npm pack --silent "@confluentinc/kafka-javascript@$version"
  tar -xf confluentinc-kafka-javascript-*.tgz --strip-components 3 package/deps/librdkafka
  # Without Kerberos and HTTP, which a broker here has no use for.
  ./configure --disable-gssapi --disable-curl
  make libs
  make -C tests test-runner
  touch .ready
}
[ -e "$SRC/.ready" ] || (say "building librdkafka and its tests"; prepare) >"$CACHE/librdkafka-build.log" 2>&1 || die "could not be built, see $CACHE/librdkafka-build.log"
left_out() {
  case $1 in
    *_mock|*_local|0000_unittests|0009_mock_cluster) echo "needs no broker";;
    0081_admin) echo "begins with ACLs; the rest of it follows by its parts";;
    0098_consumer_txn|0101_fetch_from_follower|0103_transactions) echo "needs three brokers";;
    0109_auto_create_topics|0115_producer_auth|0119_consumer_auth) echo "needs ACLs";;
    0126_oauthbearer_oidc|0142_reauthentication) echo "needs SASL";;
    800[01]_*) echo "does nothing by itself";;
    *) return 1;;
  esac
}
# What 0081_admin does for each kind of request, each run with it alone.
parts='CreateTopics DeleteTopics CreatePartitions AlterConfigs IncrementalAlterConfigs DescribeConfigs DeleteRecords ListConsumerGroups
DescribeConsumerGroups DescribeTopics DescribeCluster DeleteGroups DeleteConsumerGroupOffsets ListOffsets AlterConsumerGroupOffsets
ListConsumerGroupOffsets UserScramCredentials unclean_destroy'
# All that need a broker: the runner's table names the others as local. A name stands for all that begin so, hence -L too.
known=$(python3 - "$SRC/tests/test.c" <<'PY'
import re
import sys

table = open(sys.argv[1]).read().partition("struct test tests[] = {")[2].partition("};")[0]
for name, flags in re.findall(r"_TEST\((\w+),\s*([^,)]*)", table):
    if "TEST_F_LOCAL" not in flags and "TEST_F_KNOWN_ISSUE" not in flags.replace("KNOWN_ISSUE_WIN32", "").split(" | "):
        print(name)
PY
)
[ -n "$known" ] || die "test.c has changed: the reading of librdkafka.sh no longer fits"
run=()
for t in $known; do
  [[ $t =~ ${SUITES_ONLY:-.} ]] || continue
  if why=$(left_out "$t"); then skip "$t" "$why"; else run+=("$t"); fi
done
# Some tests make topics with Kafka's own scripts.
mkdir -p "$WORK/kafka/bin"
script() { printf '#!/bin/bash\nexec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "%s/*" %s "$@"\n' "${KAFKA_LIBS:?the directory of the jars of Apache Kafka}" "$2" >"$WORK/kafka/bin/$1"; chmod +x "$WORK/kafka/bin/$1"; }
script kafka-topics.sh org.apache.kafka.tools.TopicCommand
script kafka-configs.sh kafka.admin.ConfigCommand
script kafka-acls.sh kafka.admin.AclCommand
printf 'metadata.broker.list=%s\ntest.topic.random=true\ntest.timeout.multiplier=%s\n' "$BOOTSTRAP" "${LIBRDKAFKA_PATIENCE:-2}" >"$WORK/test.conf"
# runner LOG ARGUMENT...: runs what TESTS and SUBTESTS name. Sets rc.
runner() {
  rc=0
  (cd "$SRC/tests" && RDKAFKA_TEST_CONF=$WORK/test.conf LD_LIBRARY_PATH=$SRC/src:$SRC/src-cpp KAFKA_VERSION=4.1.0 KAFKA_PATH=$WORK/kafka BROKERS=$BOOTSTRAP \
    timeout -k 5 1200 ./test-runner -L "${@:2}") 2>&1 </dev/null | sed -u 's/\x1b\[[0-9;]*m//g' >"$1" || rc=$?
}
log=$WORK/librdkafka.log
[ ${#run[@]} -eq 0 ] || TESTS=$(IFS=,; echo "${run[*]}") runner "$log" -p4 -Q
# row TEST: its verdict and the reason for it, of the summary at the end.
row() { sed -nE "s/^\| *$1 +\| +([A-Z]+) +\|[^|]*\| */\1 /p" "$log" | tail -1; }
for t in "${run[@]}"; do
  read -r verdict why < <(row "$t")
  # What is in no summary that is there is not for this version of Kafka, or for a broker that makes no topics by itself.
  [ -z "$verdict" ] && [ -n "$(row "${run[0]}")" ] && verdict=SKIPPED why="not for a broker like this"
  # A runner that fell over has told of those that had ended.
  [ -z "$verdict" ] && verdict=$(grep -oE "=+ Test $t [A-Z]+" "$log" | tail -1 | grep -oE '[A-Z]+$')
  case $verdict in
    PASSED) pass "$t";;
    SKIPPED) skip "$t" "${why:0:140}";;
    FAILED) fail "$t" "$(sed -E 's/rnd[0-9a-f]+/…/g' <<<"${why:0:140}")";;
    *) fail "$t" "no result (exit $rc)";;
  esac
done
for part in $parts; do
  [[ 0081_admin =~ ${SUITES_ONLY:-.} || 0081_admin/$part =~ ${SUITES_ONLY:-.} ]] || continue
  log=$WORK/0081-$part.log
  TESTS=0081_admin SUBTESTS=do_test_$part runner "$log" -p1
  read -r verdict why < <(row 0081_admin)
  if [ "$verdict" = PASSED ] && grep -q "do_test_$part.*: PASS " "$log"; then
    pass "0081_admin/$part"
  else
    fail "0081_admin/$part" "${verdict:-no result (exit $rc)} $(sed -E 's/rnd[0-9a-f]+/…/g' <<<"${why:0:140}")"
  fi
done
