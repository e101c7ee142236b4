"""Reads the answer of a dry run from its recording: the file ``prediction.json`` of the rank."""

from dataclasses import replace
from pathlib import Path

from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.prediction import Prediction
from vramscope.store.directory import PREDICTION
from vramscope.store.read import side_file

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
