"""Keeps the answer of a dry run in its recording: the file ``prediction.json`` of the rank."""

import json
from dataclasses import replace
from pathlib import Path

from vramscope.errors import StoreError
from vramscope.model.prediction import Prediction
from vramscope.store import manifest as manifests
from vramscope.store.directory import MANIFEST, PREDICTION, ranks_of
from vramscope.store.write.own_file import replace_file

FORMAT, SCHEMA = "vramscope prediction", {"major": 1, "minor": 0}


def write(prediction: Prediction) -> None:
    """Write the file in one step, in the place of an earlier one; raises StoreError."""
    rank = ranks_of(prediction.run)[0]
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "trace": manifests.read(rank / MANIFEST).id,
        # The directory may move: where it lies is known when it is read.
        "prediction": replace(prediction, run=Path()).to_json(),
    }
    path = rank / PREDICTION
    try:
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
