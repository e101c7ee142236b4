"""Where torch's allocator keeps no history, the driver's figures are recorded, with a clear word."""

import json
import shutil
import subprocess

import pytest
from standin_fixtures import AFTER, BEFORE

from vramscope.loading import load

ALLOCATOR = """
#include <stdlib.h>
#include <sys/types.h>
void* take(ssize_t size, int device, void* stream) { return malloc(size); }
void give(void* address, ssize_t size, int device, void* stream) { free(address); }
"""
PROGRAM = """
import sys, time
import vramscope

own = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[2], "take", "give")
torch.cuda.memory.change_current_allocator(own)
with vramscope.record(sys.argv[1], quiet=True) as recorder:
    kept = torch.empty(1000, device="cuda")
    recorder.step()
    time.sleep(0.3)
answer = [torch.cuda.get_allocator_backend(), recorder.has_failed]
"""


@pytest.mark.standin
def test_an_allocator_of_the_programs_own_is_recorded_by_the_drivers_figures(python, tmp_path):
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    (tmp_path / "own.c").write_text(ALLOCATOR)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "own.so", "own.c"], cwd=tmp_path, check=True)
    text = BEFORE + PROGRAM + AFTER.format(path=str(tmp_path / "answer.json"))
    (tmp_path / "script.py").write_text(text)
    done = python(tmp_path / "script.py", tmp_path / "run", tmp_path / "own.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (recording,) = load(tmp_path / "run").recordings
    samples = recording.counters
    (note,) = [note for note in recording.notes if note.code == "no_history"]

    assert json.loads((tmp_path / "answer.json").read_text()) == ["pluggable", False]
    assert recording.source == "counters"
    assert "'pluggable', which keeps no history" in note.text
    assert samples.device_total_bytes.max() > 0
    for name in ("allocated_bytes", "reserved_bytes", "requested_bytes", "reserved_peak_bytes"):
        assert set(getattr(samples, name).tolist()) == {-1}
    assert len(recording.steps) == 1
