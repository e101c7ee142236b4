#!/usr/bin/env bash
# Everything that needs a real GPU, in one command: the tests marked gpu, what recording costs a step, sample
# traces. Nothing is installed and no network is needed: a Python with torch, NumPy, pandas, pyarrow,
# nvidia-ml-py and pytest, and this checkout.
#
#   OUT=./gpu_check_out PYTHON=python3 scripts/gpu_check.sh
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=$(realpath -m "${OUT:-./gpu_check_out}")
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT"
failed=0

# A step may fail or hang; the others still run, and what there is comes back.
step() {
  local name=$1 seconds=$2
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" >"$OUT/$name.log" 2>&1
  local status=$?
  tail -n 15 "$OUT/$name.log"
  if [ "$status" != 0 ]; then
    echo "== $name failed: $status"
    failed=1
  fi
}

"$PYTHON" - <<'PY' | tee "$OUT/machine.txt"
import platform, torch
print("Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
PY

# The configuration of the project is not used: it asks for plugins that such a machine need not have.
rm -rf "$OUT/workloads"
step tests 280 env VRAMSCOPE_GPU_OUT="$OUT" "$PYTHON" -m pytest -c /dev/null --rootdir . --noconftest \
  --import-mode=importlib -p no:cacheprovider -W ignore -q -ra --basetemp="$OUT/tmp" tests/gpu
step overhead 210 "$PYTHON" benchmarks/overhead.py --pairs 5 --steps 20 --out "$OUT/OVERHEAD.md" \
  --json "$OUT/overhead.json"
step sample 90 "$PYTHON" tests/gpu/samples.py "$OUT/samples"
rm -rf "$OUT/tmp"
cat "$OUT/OVERHEAD.md" 2>/dev/null
du -sh "$OUT"
exit "$failed"
