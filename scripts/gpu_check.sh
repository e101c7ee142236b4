#!/usr/bin/env bash
# Everything that needs a real GPU, in one command of less than ten minutes: sample traces, the tests marked gpu,
# what recording costs a step. Nothing is installed and no network is needed: a Python with torch, NumPy, pandas,
# pyarrow, nvidia-ml-py and pytest, and this checkout.
#
#   OUT=./gpu_check_out PYTHON=python3 scripts/gpu_check.sh
#
# A part that fails is told and hides no other; the exit status is 1 if one failed. Into OUT come eight files,
# each below 16 MiB and none in a folder: summary.txt, samples.log, samples.tar.gz, tests.log, workloads.tar.gz
# (what the tests recorded and what torch said meanwhile), overhead.log, OVERHEAD.md and overhead.json.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=$(realpath -m "${OUT:-./gpu_check_out}")
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
# Plugins that happen to be there may need what is not.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
LIMIT=$((16 * 1024 * 1024))
failed=0
mkdir -p "$OUT"
# What an earlier run left is not this one's result.
(cd "$OUT" && rm -f summary.txt {samples,tests,overhead}.log {samples,workloads}.tar.gz OVERHEAD.md overhead.json)

say() {
  echo "$@" | tee -a "$OUT/summary.txt"
}

# A part may fail or hang; the others still run, and what there is comes back.
part() {
  local name=$1 seconds=$2 begin=$SECONDS status
  shift 2
  timeout --kill-after=10 "$seconds" "$@" >"$WORK/$name.log" 2>&1
  status=$?
  tail -c "$((LIMIT / 2))" "$WORK/$name.log" >"$OUT/$name.log"
  tail -n 15 "$OUT/$name.log"
  case $status in
    0) say "$name: passed after $((SECONDS - begin)) s" ;;
    124 | 137) say "$name: FAILED, not done after $seconds s" ;;
    *) say "$name: FAILED with status $status after $((SECONDS - begin)) s" ;;
  esac
  [ "$status" = 0 ] || failed=1
}

# pack NAME: the folder of this name in one file; too large a file is not left.
pack() {
  [ -d "$WORK/$1" ] || return 0
  tar -C "$WORK" -czf "$OUT/$1.tar.gz" "$1"
  if [ "$(stat -c %s "$OUT/$1.tar.gz")" -ge "$LIMIT" ]; then
    say "$1.tar.gz: left out, it has $(stat -c %s "$OUT/$1.tar.gz") bytes"
    rm "$OUT/$1.tar.gz"
  fi
}

say "$("$PYTHON" - <<'PY' 2>&1
import platform, torch
print("Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
PY
)"

part samples 80 "$PYTHON" tests/gpu/samples.py "$WORK/samples"
pack samples
# The configuration of the project is not used: it asks for plugins that such a machine need not have.
part tests 280 env VRAMSCOPE_GPU_OUT="$WORK" "$PYTHON" -m pytest -c /dev/null --rootdir . --noconftest \
  --import-mode=importlib -p no:cacheprovider -W ignore -q -ra --basetemp="$WORK/tmp" tests/gpu
pack workloads
grep -E '^(FAILED|ERROR|SKIPPED)|[0-9]+ (passed|failed|skipped|error)' "$OUT/tests.log" | tail -n 60 |
  cut -c -200 >>"$OUT/summary.txt"
part overhead 210 "$PYTHON" benchmarks/overhead.py --pairs 5 --steps 20 --out "$OUT/OVERHEAD.md" \
  --variants "off,counters,events,torch history,torch profiler" --json "$OUT/overhead.json"
[ ! -f "$OUT/OVERHEAD.md" ] || grep '^|' "$OUT/OVERHEAD.md" >>"$OUT/summary.txt"

[ "$failed" = 0 ] && say "gpu_check: passed" || say "gpu_check: FAILED"
echo "== summary"
cat "$OUT/summary.txt"
du -sh "$OUT"
exit "$failed"
