# Sarama's functional tests (Go; every message format and request version from Kafka 2.1 on). Sourced by run.sh.
# Upstream runs them on five brokers behind toxiproxy; here the tests that make sense on one broker without either.
need go python3
source_of github.com/IBM/sarama v1.61.1
bin=$SRC/functional.test
if [ ! -x "$bin" ]; then
  say "building the functional tests"
  python3 - "$SRC/functional_test.go" <<'PY' || die "functional_test.go has changed: the edits of sarama.sh no longer fit"
import sys

path = sys.argv[1]
text = open(path).read()


def edit(old, new, count=1):
    global text
    assert text.count(old) >= count, old
    text = text.replace(old, new)


edit("ReplicationFactor: 3", "ReplicationFactor: 1", 5)
edit("(bool, error) {\n\ttoxiproxyAddr", """(bool, error) {
	if peers, ok := os.LookupEnv("SUITES_BOOTSTRAP"); ok {
		env.KafkaBrokerAddrs, env.KafkaVersion = strings.Split(peers, ","), os.Getenv("KAFKA_VERSION")
		return true, nil
	}
	toxiproxyAddr""")
edit("func resetProxies(t testing.TB) {\n", "func resetProxies(t testing.TB) {\n\tif FunctionalTestEnv.ToxiproxyClient == nil {\n\t\treturn\n\t}\n")
open(path, "w").write(text)
PY
  # Upstream's proxies delay every request by 10 ms, which its metrics test then checks.
  sed -i -E 's/^(\s*minRequestLatencyInMs\s*:?=\s*)[0-9]+/\10/' "$SRC/functional_producer_test.go"
  (cd "$SRC" && go test -c -tags functional -o functional.test .) >"$CACHE/sarama-build.log" 2>&1 || die "build failed, see $CACHE/sarama-build.log"
fi
left_out() {
  case $1 in
    TestFuncConnectionFailure|TestFuncAdminNetworkErrorClosesControllerConnection|TestAsyncProducerRemoteBrokerClosed|TestInterceptors|\
    TestFuncProducingIdempotentWithBrokerFailure) echo "cuts connections with toxiproxy";;
    TestFuncTxnProduceWithBrokerFailure|TestConsumerFetchFollowerFailover|TestFuncAdminAlterPartitionReassignments|TestFuncAdminElectLeadersV1) echo "needs several brokers";;
    TestFuncAdminListConsumerGroupOffsets|TestFuncIdempotentBufferedSequence) echo "works on the broker's container";;
    TestJava*) echo "needs Kafka's tools in a container";;
    *) return 1;;
  esac
}
# Expected not to exist, and created by this very look.
python3 "$HERE/topics.py" "$BOOTSTRAP" delete '^unknown_topic$' || true
log=$WORK/sarama.log rc=0 run=()
for t in $(cd "$SRC" && grep -hoE '^func Test[A-Za-z0-9_]+\(t ' functional_*_test.go | sed 's/func //; s/(t //'); do
  [[ $t =~ ${SUITES_ONLY:-.} ]] || continue
  if why=$(left_out "$t"); then skip "$t" "$why"; else run+=("$t"); fi
done
functional() { cd "$SRC" && SUITES_BOOTSTRAP=$BOOTSTRAP KAFKA_VERSION=4.1.0 \
  timeout -k 5 540 "$bin" -test.v -test.timeout "${1}s" -test.run "^($2)\$"; }
(functional 520 "$(IFS='|'; echo "${run[*]}")") >"$log" 2>&1 </dev/null || rc=$?
why() { grep -B6 -- "--- FAIL: $1 " "$log" | grep -E '_test.go:[0-9]+' | tail -1 | sed 's/^ *//' | cut -c1-140; }
go_results "$log"
