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
    """Name of a script → path of its recording.

    Those of one length are made in one process, from the folder asked for and every folder in *folders*: a
    process costs 5 s of CPU before its first script.
    """

    def __init__(self, out, folders):
        super().__init__()
        self.out = out
        self.folders = folders

    def __missing__(self, name):
        folders = sorted(self.folders | {name.partition("/")[0]})
        chosen = [script for folder in folders for script in corpus.scripts(folder, "simulated")]
        steps = next(steps_of(script) for script in chosen if script.name == name)
        mine = [script for script in chosen if steps_of(script) == steps and script.name not in self]
        env = {**os.environ, **ENV}
        paths = corpus.record(sys.executable, mine, self.out, device="simulated", steps=steps, env=env)
        self.update({script.name: path for script, path in zip(mine, paths, strict=True)})
        return self[name]


@pytest.fixture(scope="session")
def recorded_corpus(request, tmp_path_factory):
    params = (item.callspec.params for item in request.session.items if hasattr(item, "callspec"))
    folders = {script.path.parent.name for each in params if (script := each.get("script")) is not None}
    return Recordings(tmp_path_factory.mktemp("leaks"), folders)


def steps_of(script):
    """A leak is to be found in 10 steps; what fills up within an epoch is to be seen for more than one."""
    if script.path.stem in corpus.NEED_MORE_STEPS:
        return 30
    return 10 if script.cause or script.path.parent.name == "holdout" else 30
