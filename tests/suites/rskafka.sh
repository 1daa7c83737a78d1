# rskafka's integration tests, from the crate's own source. Sourced by run.sh.
need cargo python3 java gcc
version=0.6.0
SRC=$CACHE/rskafka-$version
prepare() {
  set -e
  rm -rf "$SRC"; mkdir -p "$SRC"
  local from
  # The tests' package depends on it, so cargo knows where its source is.
  from=$(cd "$HERE/../.." && cargo metadata --locked --format-version 1 | python3 -c '
import json, sys
print(*[p["manifest_path"].removesuffix("/Cargo.toml") for p in json.load(sys.stdin)["packages"] if (p["name"], p["version"]) == ("rskafka", sys.argv[1])])' "$version")
  cp -r "$from/." "$SRC/"
  chmod -R u+w "$SRC"
  # Any Rust of today does.
  rm -f "$SRC/rust-toolchain.toml"
  cd "$SRC"
  # Rust takes no cast any more that the release in its lock file does.
  cargo update --quiet rsasl --precise 2.3.1
  CARGO_PROFILE_DEV_DEBUG=0 cargo test --locked --no-run "${files[@]}"
  touch .ready
}
export CARGO_TARGET_DIR=$SRC/target
files=(--test client --test consumer --test producer --test produce_consume)
[ -e "$SRC/.ready" ] || (say "building rskafka's tests"; prepare) >"$CACHE/rskafka-build.log" 2>&1 || die "could not be built, see $CACHE/rskafka-build.log"
left_out() {
  case $1 in
    test_sasl|test_tls|test_socks5) echo "needs servers that upstream has in containers";;
    *) return 1;;
  esac
}
cd "$SRC"
log=$WORK/rskafka.log rc=0 run=()
for t in $(sed -nE 's/^(async )?fn (test_[a-z0-9_]+)\(.*/\2/p' tests/{client,consumer,producer,produce_consume}.rs); do
  [[ $t =~ ${SUITES_ONLY:-.} ]] || continue
  if why=$(left_out "$t"); then skip "$t" "$why"; else run+=("$t"); fi
done
CARGO_PROFILE_DEV_DEBUG=0 TEST_INTEGRATION=1 TEST_JAVA_INTEROPT=1 TEST_BROKER_IMPL=kafka KAFKA_CONNECT=$BOOTSTRAP \
  timeout -k 5 540 cargo test --locked --no-fail-fast "${files[@]}" -- --test-threads 4 --exact "${run[@]}" >"$log" 2>&1 </dev/null || rc=$?
for t in "${run[@]}"; do
  case $(sed -nE "s/^test $t \.\.\. (ok|FAILED)$/\1/p" "$log") in
    ok) pass "$t";;
    FAILED) fail "$t" "$(grep -A2 -- "^thread '$t' " "$log" | sed -n 2p | cut -c1-140)";;
    *) fail "$t" "no result (exit $rc)";;
  esac
done
