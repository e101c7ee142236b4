"""Recordings of the corpus on the simulated device, each made once."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("leaks_corpus", Path(__file__).with_name("corpus.py"))
corpus = sys.modules["leaks_corpus"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

STEPS = {"leaking": 10, "clean": 30, "holdout": 10}


@pytest.fixture(scope="session")
def recorded_corpus(tmp_path_factory):
    """``recorded_corpus(folder)`` → (script, recording) of each script in it."""
    made = {}

    def of(folder):
        if folder not in made:
            chosen = corpus.scripts(folder)
            out = tmp_path_factory.mktemp(folder)
            env = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
            made[folder] = list(
                zip(
                    chosen,
                    corpus.record(
                        sys.executable, chosen, out, device="simulated", steps=STEPS[folder], env=env
                    ),
                    strict=True,
                )
            )
        return made[folder]

    return of
