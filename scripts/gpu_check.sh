#!/usr/bin/env bash
# Everything that needs a real GPU, in one command of less than twenty minutes; its result is one page, GPU_CHECK.md.
# Nothing is installed and no network is needed: a Python with torch, NumPy, pandas, pyarrow, nvidia-ml-py and pytest,
# and this checkout.
#
#   OUT=./gpu_check_out PYTHON=python3 scripts/gpu_check.sh
#   SHORT=1 PYTHON=.cache/standin/2.13.0/python scripts/gpu_check.sh     the rehearsal, some minutes, on the stand-in
#   PARTS="tests overhead" scripts/gpu_check.sh                          some parts; the page keeps the others' results
#
# A part that fails is named and hides no other; the exit status is 1 if one failed. Beside the page OUT gets the logs,
# and traces to look at: samples.tar.gz (new ones for sample_traces/), and workloads.tar.gz (what the tests recorded, and
# what torch reported meanwhile). Every file is below 16 MiB, and none lies in a folder.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=$(realpath -m "${OUT:-./gpu_check_out}")
PARTS=${PARTS:-samples tests overhead models prediction}
SHORT=${SHORT:-}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
# Plugins that happen to be there may need what is not.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
LIMIT=$((16 * 1024 * 1024))
pairs=5 steps=20 variants="off,counters,events,torch history,torch profiler"
programs=gptsgd,llama,bert,moe,vit,mixer,dlrm,translation,gan,unet
[ -z "$SHORT" ] || { pairs=1 steps=3 variants=off,events programs=gptsgd,vit; }
failed=0
mkdir -p "$OUT"

# part NAME SECONDS COMMAND…: a part may fail or hang; the others still run. What an earlier run left of it goes.
part() {
  local name=$1 seconds=$2 begin=$SECONDS status
  shift 2
  rm -f "$OUT/$name".{log,status,md}
  timeout --kill-after=10 "$seconds" "$@" >"$WORK/$name.log" 2>&1
  status=$?
  tail -c "$((LIMIT / 2))" "$WORK/$name.log" >"$OUT/$name.log"
  tail -n 8 "$OUT/$name.log"
  case $status in
    0) echo "passed | $((SECONDS - begin))" ;;
    124 | 137) echo "**FAILED**, not done after $seconds s | $((SECONDS - begin))" ;;
    *) echo "**FAILED** with status $status | $((SECONDS - begin))" ;;
  esac >"$OUT/$name.status"
  [ "$status" = 0 ] || failed=1
  echo "== $name: $(cat "$OUT/$name.status") s"
}

# pack NAME: the folder of this name in one file; too large a file is not left.
pack() {
  rm -f "$OUT/$1.tar.gz"
  [ -d "$WORK/$1" ] || return 0
  tar -C "$WORK" -czf "$OUT/$1.tar.gz" "$1"
  [ "$(stat -c %s "$OUT/$1.tar.gz")" -lt "$LIMIT" ] || rm "$OUT/$1.tar.gz"
}

samples() {
  part samples 80 "$PYTHON" tests/gpu/samples.py "$WORK/samples"
  pack samples
  grep -E "events,|as wanted" "$OUT/samples.log" | sed 's/^/- /' >"$OUT/samples.md"
}

# The configuration of the project is not used: it asks for plugins that such a machine need not have.
tests() {
  part tests 320 env VRAMSCOPE_GPU_OUT="$WORK" "$PYTHON" -m pytest -c /dev/null --rootdir . --noconftest \
    --import-mode=importlib -p no:cacheprovider -W ignore -q -ra --basetemp="$WORK/tmp" tests/gpu
  pack workloads
  grep -E '^(FAILED|ERROR|SKIPPED)|[0-9]+ (passed|failed|skipped|error)' "$OUT/tests.log" | tail -n 60 |
    cut -c -200 | sed 's/^/- /' >"$OUT/tests.md"
}

overhead() {
  part overhead 230 "$PYTHON" benchmarks/overhead.py --pairs "$pairs" --steps "$steps" --variants "$variants" \
    --out "$WORK/overhead.md" --json "$OUT/overhead.json"
  [ ! -f "$WORK/overhead.md" ] || sed 1,2d "$WORK/overhead.md" >"$OUT/overhead.md"
}

models() {
  part models 330 "$PYTHON" benchmarks/overhead_by_model.py --pairs "$pairs" --steps "$steps" --limit 80 \
    --out "$OUT/models.md"
}

prediction() {
  part prediction 230 env GENUINE_PYTHON="$PYTHON" "$PYTHON" benchmarks/prediction.py --out-of-memory no \
    --variants fp32 --programs "$programs" --out "$WORK/prediction.md"
  [ ! -f "$WORK/prediction.md" ] || grep -E '^(## |\||- |$)' "$WORK/prediction.md" | cat -s |
    sed 's/^## /### /' >"$OUT/prediction.md"
}

for name in $PARTS; do "$name"; done

# section NAME TITLE: its status and what it found, from this run or an earlier one.
section() {
  [ -f "$OUT/$1.status" ] || return 0
  printf '\n## %s\n\n%s s\n\n' "$2" "$(sed 's/ |/,/' "$OUT/$1.status")"
  cat "$OUT/$1.md" 2>/dev/null || tail -n 5 "$OUT/$1.log"
}

{
  echo "# vramscope on a GPU"
  echo
  date -u '+%Y-%m-%d %H:%M UTC'
  "$PYTHON" - <<'PY' 2>&1
import platform, torch
print("Python", platform.python_version() + ", torch", torch.__version__ + ", CUDA", torch.version.cuda)
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
PY
  [ -z "$SHORT" ] || printf '\n**A rehearsal: few steps, few programs. No figure here means anything.**\n'
  section tests "Truth: what was recorded against torch's own counters"
  section overhead "What recording costs a transformer"
  section models "What recording costs by kind of training"
  section prediction "Predictions against this device"
  section samples "Traces for sample_traces/ (samples.tar.gz)"
} >"$OUT/GPU_CHECK.md"
cat "$OUT/GPU_CHECK.md"
exit "$failed"
