# What run.sh and the suites share. Sourced, not run.
set -uo pipefail

N_PASS=0 N_FAIL=0 N_SKIP=0

say()  { echo "# $*" >&2; }
die()  { echo "suites: $*" >&2; exit 2; }
need() { for c in "$@"; do command -v "$c" >/dev/null || die "'$c' is needed by this suite and not on the PATH"; done; }

pass() { N_PASS=$((N_PASS+1)); echo "PASS $1"; }
fail() { N_FAIL=$((N_FAIL+1)); echo "FAIL $1${2:+ -- $2}"; }
skip() { N_SKIP=$((N_SKIP+1)); echo "SKIP $1${2:+ -- $2}"; }
summary() { echo "$N_PASS passed, $N_FAIL failed, $N_SKIP skipped"; [ "$N_FAIL" -eq 0 ]; }

# step NAME [SECONDS]: runs the shell function step_NAME (dashes become underscores) in a fresh bash with -e, bounded in
# time. Exit 0 passes, 77 skips, the rest fails. Its output is kept in $WORK/NAME.log; the last line of it is the reason.
step() {
  local name=$1 limit=${2:-60} fn=step_${1//-/_} log=$WORK/$1.log rc=0 why
  if [ -n "${SUITES_ONLY:-}" ] && ! [[ $name =~ $SUITES_ONLY ]]; then return 0; fi
  timeout -k 5 "$limit" bash -c "set -eo pipefail; cd '$WORK'; $fn" >"$log" 2>&1 </dev/null || rc=$?
  why=$(tail -n 1 "$log" | tr -d '\r' | cut -c1-160)
  case $rc in
    0) pass "$name";;
    77) skip "$name" "$why";;
    124|137) fail "$name" "no end after ${limit}s; $why";;
    *) fail "$name" "rc=$rc; $why";;
  esac
}

# steps FILE: all steps of a suite, in the order of its file.
steps() {
  local fn name
  for fn in $(grep -o 'step_[a-z0-9_]*()' "$1" | tr -d '()'); do
    export -f "$fn"
    name=${fn#step_}
    step "${name//_/-}" 90
  done
}

# Helpers for use inside steps.
t_fail() { echo "$*"; exit 1; }
t_skip() { echo "$*"; exit 77; }
# expect TEXT REGEX: the text has a line that matches the extended regex.
expect() { grep -Eq -- "$2" <<<"$1" || { echo "$1" | tail -20; t_fail "expected a line matching: $2"; }; }
reject() { if grep -Eq -- "$2" <<<"$1"; then echo "$1" | tail -20; t_fail "unexpected line matching: $2"; fi; }
same()   { [ "$1" = "$2" ] || t_fail "expected '$2', got '$1'"; }
export -f t_fail t_skip expect reject same

# source_of MODULE VERSION: copies a Go module with its tests from the module cache, once. Sets SRC.
source_of() {
  local from
  SRC=$CACHE/${1##*/}-$2
  say "$1 $2"
  [ -e "$SRC/.unpacked" ] && return
  rm -rf "$SRC"; mkdir -p "$SRC"
  from=$(cd "$SRC" && go mod download -json "$1@$2" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && [ -d "$from" ] || die "could not get $1 $2"
  cp -r "$from/." "$SRC/" && chmod -R u+w "$SRC"
  touch "$SRC/.unpacked"
}

# go_results LOG: the verdicts that `go test -v` has printed, and a failure for each of the tests $run without one.
# `why NAME` is what a suite can say of a failure.
go_results() {
  local log=$1 verdict name took test
  while read -r verdict name took; do
    case $verdict in
      PASS) pass "$name";;
      FAIL) fail "$name" "$(why "$name")";;
      SKIP) skip "$name" "$(grep -B1 -- "--- SKIP: $name " "$log" | head -1 | sed -nE 's/^ *[a-z_]+\.go:[0-9]+: //p' | cut -c1-120)";;
    esac
  done < <(sed -nE 's/^ *--- (PASS|FAIL|SKIP): ([^ ]+) (.*)$/\1 \2 \3/p' "$log")
  for test in "${run[@]}"; do
    grep -qE -- "--- (PASS|FAIL|SKIP): $test " "$log" || fail "$test" "no result (exit $rc): $(grep -m1 -E 'panic:|fatal error|timed out' "$log" | cut -c1-120)"
  done
}
