"""Will it fit? ``vramscope.predict(train)`` runs a program's own steps dry: no GPU, and nothing computed.

What comes out is an ordinary recording, of source ``predicted``, which keeps the answer about one card.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vramscope.errors import UsageError, VramscopeError
from vramscope.model.prediction import Prediction
from vramscope.prediction.trial import DEFAULT_CARD, Trial, room_of

# The process that runs the program imports no analysis: it does not need one (0.4 s).
if TYPE_CHECKING:
    from vramscope.prediction.answering import Outcome
    from vramscope.prediction.largest import LargestSize

__all__ = ["Prediction", "Trial", "predict", "predict_largest"]


def predict(  # noqa: PLR0913 -- each is an option of the command
    program: Any,
    *,
    inputs: Sequence[Any] | None = None,
    card: str = DEFAULT_CARD,
    capacity: str | int | None = None,
    steps: int | None = 3,
    directory: str | os.PathLike[str] | None = None,
    ranks: int | None = None,
    as_cuda: bool = False,
) -> Prediction:
    """Predict how much GPU memory a training needs, without a GPU.

    The program runs as it is, but its tensors have shapes and no content. It may say ``cuda`` as if a card
    were there; torch is as before when it returns. Where it takes a branch by a value that nobody computed
    it is run again for the other branch, and where memory runs out it is run again without a limit.

    Parameters
    ----------
    program
        A function without arguments that builds a model and trains it; or a module, which is then trained
        by AdamW on the mean of its outputs.
    inputs
        For a module: its inputs, each an example tensor or the shape of one in float32.
    card
        The card to predict for, by its name: ``"H100"``, ``"A100 40"``, ``"4090"``.
    capacity
        The bytes of the card, as a number or as text (``"24GiB"``), instead of what the card has.
    steps
        The program is stopped after so many optimizer steps; None lets it run to its end.
    directory
        Where the recording goes; without it a new temporary folder.
    ranks
        The number of ranks of a program that runs on several cards: the first of them is predicted, in a
        process group that sends nothing.
    as_cuda
        Whether what the program makes without a device lies on the card, with the batches of its loaders.

    Returns
    -------
    Prediction
        Peaks in bytes, whether they fit, how certain that is and why, and where the recording is.

    Raises
    ------
    UsageError
        The card or the capacity is not known, or a module comes without inputs.
    CaptureError
        torch is missing or too old for a dry run.
    VramscopeError
        The program put nothing on the card.
    """
    return _answer(Trial(card, capacity, steps, ranks, directory, is_as_cuda=as_cuda), _body(program, inputs))


def predict_largest(
    program: Callable[[int], Any],
    *,
    start: int = 1,
    card: str = DEFAULT_CARD,
    capacity: str | int | None = None,
    steps: int | None = 3,
) -> "LargestSize":
    """Search the largest batch, or the longest sequence, with which a training fits a card, without a GPU.

    Parameters
    ----------
    program
        A function of one size that builds a model and trains it.
    start
        The first size to try: at least 1.
    card
        The card's name, as in ``predict``.
    capacity
        Memory of the card in bytes or as ``"24GiB"``, instead of ``card``.
    steps
        How many steps a dry run trains; ``None`` runs the program to its end.

    Returns
    -------
    LargestSize
        ``fitting`` is the largest size that fits, ``trials`` every dry run with its reserved bytes.

    Raises
    ------
    UsageError
        The card, the capacity or the first size is impossible.
    """
    from vramscope.prediction.largest import largest_of

    if start < 1:
        raise UsageError("start: at least 1")
    room = room_of(card, capacity)

    def answer(size: int) -> Prediction:
        return _answer(Trial(card, capacity, steps, measures_need=False), partial(program, size))

    return largest_of(answer, start, room.room_bytes)


def _answer(trial: Trial, body: Callable[[], Any]) -> Prediction:
    """Return the answer of runs in this process; the first one raises what the program raises."""
    from vramscope.prediction.answering import answer_here
    from vramscope.prediction.once import run_once

    def run(one: Trial) -> "Outcome":
        try:
            return run_once(one, body)
        except VramscopeError as error:
            return error
        except Exception as error:
            if one is trial:
                raise
            # The program's own, as it never went this way.
            return VramscopeError(f"{type(error).__name__}: {error}")

    found = answer_here(trial, run)
    _warn_beside_a_card()
    return found


def _warn_beside_a_card() -> None:
    import torch

    if torch.cuda.is_available():
        text = "after a dry run autograd cannot use the card in this process: train in another one"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _body(program: Any, inputs: Sequence[Any] | None) -> Callable[[], Any]:
    if not hasattr(program, "named_parameters"):
        if inputs is not None:
            raise UsageError("inputs go with a module; a function makes its own")
        return program
    if inputs is None:
        raise UsageError("a module needs inputs: predict(model, inputs=[(8, 3, 224, 224)])")
    from vramscope.prediction.module import training_of

    return training_of(program, inputs)
