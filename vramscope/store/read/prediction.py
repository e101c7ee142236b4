"""Reads the answer of a dry run from its recording: the file ``prediction.json`` of the rank."""

import json
from dataclasses import replace
from pathlib import Path

from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.prediction import Prediction
from vramscope.store.directory import PREDICTION

_FORMAT, _MAJOR = "vramscope prediction", 1
_LARGEST_BYTES = 4 << 20


def read(rank: Path, trace: str) -> tuple[Prediction | None, list[Note]]:
    """Return the prediction of the trace with this id, or None and a note on why there is none.

    A recording that was made before vramscope kept predictions has none, and no note.
    """
    path = rank / PREDICTION
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return None, [_note("it is too large")]
        document = json.loads(path.read_bytes())
        if document["format"] != _FORMAT or document["trace"] != trace:
            return None, [_note("it is not of this recording")]
        if document["schema"]["major"] > _MAJOR:
            return None, [_note("a newer vramscope wrote it")]
        return replace(Prediction.from_json(document["prediction"]), run=rank.parent), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return None, [_note(f"{type(error).__name__}: {error}")]


def _note(why: str) -> Note:
    return Note(
        NoteCode.DAMAGED, f"{PREDICTION} cannot be read, so the verdict of the dry run is not known: {why}"
    )
