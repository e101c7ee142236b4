"""Sizes among the arguments of a program."""

import pytest

from vramscope.errors import UsageError
from vramscope.prediction.sizes import asked_size, known_sizes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--batch-size", "32", "--lr", "1"], ["--batch-size", "64", "--lr", "1"]),
        (["--batch_size=32"], ["--batch_size=64"]),
        (["batch_size=32", "x=1"], ["batch_size=64", "x=1"]),
        (["--batch-size", "1", "--batch-size", "32"], ["--batch-size", "1", "--batch-size", "64"]),
    ],
)
def test_an_option_of_the_program_is_found_by_its_name(arguments: list[str], expected: list[str]):
    size = asked_size("batch-size", arguments, "train.py")

    assert size.value == 32
    assert size.arguments(64) == expected


def test_a_placeholder_stands_for_a_size_anywhere():
    size = asked_size("n=8", ["--shape={n},3", "{n}"], "train.py")

    assert size.value == 8
    assert size.arguments(16) == ["--shape=16,3", "16"]


@pytest.mark.parametrize(
    ("asked", "arguments"),
    [("n", ["{n}"]), ("n", ["--m", "3"]), ("n=0", ["--n", "3"]), ("n=x", ["--n", "3"]), ("n", ["--n", "x"])],
)
def test_a_size_that_is_not_there_is_refused_with_what_to_give(asked: str, arguments: list[str]):
    with pytest.raises(UsageError, match="--largest n"):
        asked_size(asked, arguments, "train.py")


def test_the_usual_names_of_batch_and_sequence_are_known():
    batch, sequence = known_sizes(["--per_device_train_batch_size", "4", "--block-size=256"])

    assert batch is not None
    assert sequence is not None
    assert (batch.value, sequence.value) == (4, 256)
    assert sequence.arguments(512) == ["--per_device_train_batch_size", "4", "--block-size=512"]


def test_what_only_looks_like_a_size_is_none():
    assert known_sizes(["--batch-norm", "4", "--epochs", "3"]) == (None, None)
