"""The limit of a process is known from the message that ended its run."""

import pytest

from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.store.read.assembly import limit_notes

MESSAGE = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity "
    "of 79.10 GiB of which 77.07 GiB is free. Including non-PyTorch memory, this process has 2.03 GiB "
    "memory in use. {}"
    "Of the allocated memory 1.42 GiB is allocated by PyTorch, and 168.00 MiB is reserved by PyTorch "
    "but unallocated."
)


@pytest.mark.parametrize(
    ("error", "device", "expected"),
    [
        (MESSAGE.format("1.59 GiB allowed; "), 1, [round(1.59 * (1 << 30))]),
        (MESSAGE.format("1.59 GiB allowed; "), 0, []),
        (MESSAGE.format(""), 1, []),
        ("ValueError: out of memory. GPU 1 said 3.00 XiB allowed;", 1, []),
        ("", 0, []),
    ],
)
def test_the_limit_is_the_number_that_torch_printed(error, device, expected):
    assert [note.value for note in limit_notes(error, device, []) if note.code == "limit"] == expected


def test_a_recorded_limit_is_exact_and_counts_alone():
    recorded = Note(NoteCode.LIMIT, "1.59 GiB allowed to this process", 1_710_416_200)

    assert limit_notes(MESSAGE.format("1.59 GiB allowed; "), 1, [recorded]) == []
