"""Recordings of the corpus on the simulated device, each made once."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("leaks_corpus", Path(__file__).with_name("corpus.py"))
corpus = sys.modules["leaks_corpus"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

# Failures of ours are warnings; the scripts' own are of no interest.
ENV = {"PYTHONWARNINGS": "ignore,always::RuntimeWarning", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def recorded_corpus(tmp_path_factory):
    """``recorded_corpus(folder)`` → (script, path of its recording) of each script in it."""
    made = {}

    def record(chosen, steps):
        out, env = tmp_path_factory.mktemp("leaks"), {**os.environ, **ENV}
        paths = corpus.record(sys.executable, chosen, out, device="simulated", steps=steps, env=env)
        return list(zip(chosen, paths, strict=True))

    def of(folder):
        if folder not in made:
            chosen = corpus.scripts(folder, "simulated")
            groups = {steps: [each for each in chosen if steps_of(each) == steps] for steps in (10, 30)}
            made[folder] = [pair for steps, group in groups.items() if group for pair in record(group, steps)]
        return made[folder]

    return of


def steps_of(script):
    """A leak is to be found in 10 steps; what fills up within an epoch is to be seen for more than one."""
    return 10 if script.cause or script.path.parent.name == "holdout" else 30
