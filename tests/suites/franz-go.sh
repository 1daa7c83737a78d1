# franz-go's integration tests of pkg/kgo (pkg/kadm and the others have none that need a broker). Sourced by run.sh.
need go
source_of github.com/twmb/franz-go v1.22.3
bin=$SRC/kgo.test
if [ ! -x "$bin" ]; then
  say "building pkg/kgo's tests"
  (cd "$SRC" && go test -c -o kgo.test ./pkg/kgo) >"$CACHE/franz-go-build.log" 2>&1 || die "build failed, see $CACHE/franz-go-build.log"
fi
# The tests that talk to a broker; the rest of the package are unit tests. Upstream gives the ETL tests 500,000 records, here they have 50,000.
tests='TestUnknownGroupOffsetFetchPinned TestPing TestIssue1034 TestIssue325 TestConsumeTopicRetrieval TestConsumeTopicRetrieval_Many
TestConsumeRegex TestIssue337 TestDirectPartitionPurge TestIssue434 TestAddRemovePartitions TestPauseIssue489 TestPauseIssueOct2023
TestIssue523 TestIssue648 TestIssue810 TestIssue865 TestPooling TestGroupSimple TestHookPollStart TestPollWaitStateNoUnderflow
TestClient_Produce TestIssue769 TestIssueProduceSyncManualPartitionNegativeDoesNotPanic TestIssue831 TestClient_ProduceLargeMessages
TestGroupETL TestTxnEtl TestShareGroup TestShareGroupETL TestShareGroupAckOnClose TestShareGroupOffsetsAdmin TestSCRAMAuth TestSCRAMAuthBadCredentials'
known=$("$bin" -test.list . | grep ^Test)
run=()
for t in $tests; do
  grep -qx "$t" <<<"$known" || { fail "$t" "no such test at this commit"; continue; }
  [[ $t =~ ${SUITES_ONLY:-.} ]] && run+=("$t")
done
log=$WORK/kgo.log
rc=0
kgo() { cd "$SRC/pkg/kgo" && KGO_SEEDS=$BOOTSTRAP KGO_TEST_RF=1 KGO_TEST_RECORDS=50000 KGO_LOG_LEVEL=none KGO_TEST_STABLE_FETCH=true \
  timeout -k 5 540 "$bin" -test.v -test.timeout 500s -test.run "^($1)\$"; }
(kgo "$(IFS='|'; echo "${run[*]}")") >"$log" 2>&1 </dev/null || rc=$?
why() { grep -A4 -- "--- FAIL: $1 " "$log" | grep -E '_test.go:[0-9]+' | head -1 | sed 's/^ *//' | cut -c1-140; }
go_results "$log"
