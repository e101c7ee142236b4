"""Recordings of the corpus on the simulated device, each made once."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("leaks_corpus", Path(__file__).with_name("corpus.py"))
corpus = sys.modules["leaks_corpus"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

FOLDERS = ("leaking", "clean", "holdout", "trial", "unseen", "field")
# Of the field's: the batch grows late, a trainer's library takes part.
NEED_MORE_STEPS = ("batch_larger_later",)
# Failures of ours are warnings; the scripts' own are of no interest.
ENV = {"PYTHONWARNINGS": "ignore,always::RuntimeWarning", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def recorded_corpus(tmp_path_factory):
    """Name of a script → path of its recording; all of one length are made in one process."""
    chosen = [script for folder in FOLDERS for script in corpus.scripts(folder, "simulated")]
    out, env, made = tmp_path_factory.mktemp("leaks"), {**os.environ, **ENV}, {}
    for steps in (10, 30):
        mine = [script for script in chosen if steps_of(script) == steps]
        paths = corpus.record(sys.executable, mine, out, device="simulated", steps=steps, env=env)
        made.update({script.name: path for script, path in zip(mine, paths, strict=True)})
    return made


def steps_of(script):
    """A leak is to be found in 10 steps; what fills up within an epoch is to be seen for more than one."""
    if script.path.stem in NEED_MORE_STEPS:
        return 30
    return 10 if script.cause or script.path.parent.name == "holdout" else 30
