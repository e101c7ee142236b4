"""The answer of a dry run in its recording: the file ``prediction.json`` of the rank."""

import json
from dataclasses import replace
from pathlib import Path

from vramscope.errors import StoreError
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.prediction import Prediction
from vramscope.store import manifest as manifests
from vramscope.store.directory import MANIFEST, PREDICTION, ranks_of
from vramscope.store.read import side_file
from vramscope.store.write.own_file import replace_file

_FORMAT, _MAJOR = "vramscope prediction", 1
_LARGEST_BYTES = 4 << 20


def read(rank: Path, trace: str) -> tuple[Prediction | None, list[Note]]:
    """Return the prediction of the trace with this id, or None and a note on why there is none.

    A recording that was made before vramscope kept predictions has none, and no note.
    """
    path = rank / PREDICTION
    try:
        document = side_file.document(path, _LARGEST_BYTES)
        if document["format"] != _FORMAT or document["trace"] != trace:
            return None, [_note("it is not of this recording")]
        if document["schema"]["major"] > _MAJOR:
            return None, [_note("a newer vramscope wrote it")]
        found = side_file.checked(Prediction.from_json(document["prediction"]), Prediction)
        return replace(found, run=rank.parent), []
    except FileNotFoundError:
        return None, []
    except side_file.DAMAGE as error:
        return None, [_note(f"{type(error).__name__}: {error}")]


def _note(why: str) -> Note:
    return Note(
        NoteCode.DAMAGED, f"{PREDICTION} cannot be read, so the verdict of the dry run is not known: {why}"
    )


def write(prediction: Prediction) -> None:
    """Write the file in one step, in the place of an earlier one; raises StoreError."""
    rank = ranks_of(prediction.run)[0]
    document = {
        "format": _FORMAT,
        "schema": {"major": _MAJOR, "minor": 0},
        "trace": manifests.read(rank / MANIFEST).id,
        # The directory may move: where it lies is known when it is read.
        "prediction": replace(prediction, run=Path()).to_json(),
    }
    path = rank / PREDICTION
    try:
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
