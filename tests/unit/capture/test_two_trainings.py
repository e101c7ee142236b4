"""Two threads that train at once: each event is in the phase of its own thread, or in none.

The truth is in the program: it allocates a size of its own in each phase of each thread.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vramscope import record
from vramscope.loading import load
from vramscope.model.codes import NoteCode
from vramscope.model.marks import EventThreads, Phase
from vramscope.model.trace import Action
from vramscope.steps.innermost import phases_of

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
sys.path.append(str(PROGRAMS))

from two_trainings import ELEMENTS, N_STEPS, PHASES, THREADS, run  # noqa: E402

IN_PHASES = [(name, phase) for name in THREADS for phase in PHASES]
ON_CUDA = """
import json, sys, time, torch, vramscope
from two_trainings import run
torch.backends.cudnn.enabled = False
torch.set_default_device("cuda")
is_new = hasattr(torch._C, "_cuda_setMemoryMetadata")
if "old" in sys.argv and is_new:
    del torch._C._cuda_setMemoryMetadata
with vramscope.record("run", quiet=True):
    idents = run(vramscope.record)
time.sleep(0.2)
print(json.dumps([is_new, idents]))
"""


def found_phases(recording, idents):
    """For each label of the program the phases that its allocations are in, as thread and phase."""
    phases = recording.phases
    name_of = {ident: name for name, ident in idents.items()}
    births = np.flatnonzero(recording.trace.action == Action.ALLOC)
    row = phases_of(phases, len(recording.trace))[births]
    size = recording.trace.size[births]
    found = {}
    for label, elements in ELEMENTS.items():
        rows = row[size == 4 * elements].tolist()
        found[label] = [
            (name_of[int(phases.thread[at])], Phase(phases.phase[at]).name.lower()) if at >= 0 else None
            for at in rows
        ]
    return found


def expected():
    """What the program says; before the second thread has begun a phase, time alone decides."""
    return {label: [label] * 3 * N_STEPS for label in IN_PHASES} | {("first", "between"): [None] * 3}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    with record(folder / "run", device="simulated", quiet=True):
        idents = run(record)
    (recording,) = load(folder / "run").recordings
    return recording, idents


def note_of(recording):
    (note,) = [note for note in recording.notes if note.code == NoteCode.SEVERAL_THREADS]
    return note


def test_each_allocation_is_in_the_phase_of_its_thread(simulated):
    recording, idents = simulated

    found = found_phases(recording, idents)

    assert found | expected() == found
    assert len(recording.steps) == N_STEPS
    assert "several threads trained at once" in note_of(recording).text


def test_what_no_fact_decides_is_in_no_phase(simulated):
    recording, idents = simulated
    unknown = replace(recording, phases=replace(recording.phases, made_by=EventThreads.of()))

    found = found_phases(unknown, idents)

    assert all(set(found[label]) <= {label, None} for label in IN_PHASES)
    assert any(None in found[label] for label in IN_PHASES)


@pytest.mark.standin
@pytest.mark.parametrize("torch_version", ["new", "old"])
def test_the_same_on_cuda(forks, tmp_path, torch_version):
    code = f"import sys; sys.argv.append({torch_version!r})" + ON_CUDA
    done = forks.run_code(code, cwd=tmp_path, variables={"PYTHONPATH": f"{ROOT}{os.pathsep}{PROGRAMS}"})
    assert done.returncode == 0, done.stderr
    (recording,) = load(tmp_path / "run").recordings

    is_new, idents = json.loads(done.stdout)
    found = found_phases(recording, idents)

    assert len(recording.steps) == N_STEPS
    if torch_version == "new" and is_new:
        assert found | expected() == found
    else:
        assert all(set(found[label]) <= {label, None} for label in IN_PHASES)
        assert note_of(recording).value > 0
