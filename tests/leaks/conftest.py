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


class Recordings(dict):
    """Name of a script → path of its recording; those of one folder and length are made in one process."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def __missing__(self, name):
        chosen = corpus.scripts(name.partition("/")[0], "simulated")
        steps = next(steps_of(script) for script in chosen if script.name == name)
        mine = [script for script in chosen if steps_of(script) == steps]
        env = {**os.environ, **ENV}
        paths = corpus.record(sys.executable, mine, self.out, device="simulated", steps=steps, env=env)
        self.update({script.name: path for script, path in zip(mine, paths, strict=True)})
        return self[name]


@pytest.fixture(scope="session")
def recorded_corpus(tmp_path_factory):
    return Recordings(tmp_path_factory.mktemp("leaks"))


def steps_of(script):
    """A leak is to be found in 10 steps; what fills up within an epoch is to be seen for more than one."""
    if script.path.stem in corpus.NEED_MORE_STEPS:
        return 30
    return 10 if script.cause or script.path.parent.name == "holdout" else 30
