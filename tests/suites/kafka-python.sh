# kafka-python's integration tests, as its source package brings them. Sourced by run.sh.
need python3 tar
version=3.0.12
SRC=$CACHE/kafka-python-$version
python=$SRC/venv/bin/python
say "kafka-python $version"
prepare() {
  set -e
  rm -rf "$SRC"; mkdir -p "$SRC"
  python3 -m venv "$SRC/venv"
  local pip="$python -m pip --quiet --disable-pip-version-check"
  $pip install pytest==9.2.0 pytest-timeout==2.4.0 pytest-mock==3.17.0 lz4==4.4.5 zstandard==0.25.0 python-snappy==0.7.3 crc32c==2.9.post0
  $pip download --no-deps --no-binary :all: --dest "$SRC" "kafka-python==$version"
  tar -xf "$SRC"/kafka_python-*.tar.gz -C "$SRC" --strip-components 1
  # What starts brokers for them is not in the package, and is not needed for one that is up.
  touch "$SRC/test/__init__.py"
  printf 'class ExternalService:\n    def __init__(self, host, port):\n        pass\n\n    def stop(self):\n        pass\n\n\nSpawnedService = None\n' >"$SRC/test/service.py"
  sed -i '/if not os.path.isdir(self.kafka_root):/,+1d' "$SRC/test/integration/fixtures.py"
  touch "$SRC/.ready"
}
[ -e "$SRC/.ready" ] || (prepare) >"$CACHE/kafka-python.log" 2>&1 || die "could not be made ready, see $CACHE/kafka-python.log"
# Tests of TLS and SASL start brokers of their own.
cd "$SRC"
log=$WORK/kafka-python.log
tests=(test/integration/test_{admin,consumer,producer}_integration.py)
if [ -n "${SUITES_ONLY:-}" ]; then
  mapfile -t tests < <(PYTHONPATH=. $python -m pytest -q --collect-only -p no:cacheprovider "${tests[@]}" 2>/dev/null | while read -r id; do
    name=${id##*::}; [[ $id == *::* && ${name%%[*} =~ $SUITES_ONLY ]] && echo "$id"; done)
fi
PYTHONPATH=. KAFKA_VERSION=4.1.0 KAFKA_URI="kafka://$BOOTSTRAP" timeout -k 5 540 \
  $python -m pytest -v --tb=line --timeout 60 --timeout-method signal -p no:cacheprovider "${tests[@]}" >"$log" 2>&1 </dev/null
while read -r name verdict; do
  case $verdict in
    PASSED) pass "$name";;
    SKIPPED) skip "$name";;
    *) fail "$name" "$verdict, see $log";;
  esac
done < <(sed -nE 's/^test\/integration\/[a-z_]+\.py::([^ ]+) (PASSED|FAILED|ERROR|SKIPPED) .*/\1 \2/p' "$log")
[ $((N_PASS+N_FAIL)) -gt 0 ] || die "no test ran, see $log"
