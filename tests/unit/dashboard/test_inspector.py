"""What the inspector shows of a block, an instant, a step and a line, against what the program did."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard import inspector
from vramscope.dashboard.address import Address, restore
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

from vramscope.model.recording import Outcome
from vramscope.model.trace import Action

MIB = 1 << 20


def texts(part: Any) -> str:
    """Return every text of a component, in order."""
    if isinstance(part, list | tuple):
        return " ".join(texts(each) for each in part)
    if not hasattr(part, "children"):
        return "" if part is None else str(part)
    return texts(part.children)


@pytest.fixture
def view(data: Data) -> View:
    return data.view(Address(run=next(iter(data.runs.paths()))))


def shown(data: Data, view: View, what: str, at: int | None = None) -> str:
    return texts(inspector.content(data, view, what, at))


def test_a_block_has_its_line_life_siblings_and_segment(data: Data, view: View) -> None:
    found = data.ask(view, "lifetimes")
    (row, *_) = np.flatnonzero(found.block_size == 8 * MIB).tolist()
    words = shown(data, view, f"b{row}", int(found.alloc_event[row]) + 1)

    # Three steps of four blocks by each of two functions.
    assert "12 blocks of this line and size; 1 live at the instant, 8.00 MiB" in words
    assert "Attention.forward model.py:10" in words


def test_a_block_names_what_else_keeps_its_segment(open_program: Any, tmp_path: Path) -> None:
    program = open_program(tmp_path / "two")
    base = 1 << 40
    program.event(Action.SEGMENT_ALLOC, base, 20 * MIB)
    program.event(Action.ALLOC, base, 2 * MIB, program.stack("first", 1))
    program.event(Action.ALLOC, base + 2 * MIB, 3 * MIB, program.stack("second", 2))
    program.event(Action.FREE_REQUESTED, base, 2 * MIB)
    program.event(Action.FREE_COMPLETED, base, 2 * MIB)
    program.flush()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)
    view = data.view(Address(run=next(iter(data.runs.paths()))))

    both, alone = shown(data, view, "b0", 3), shown(data, view, "b1", 5)
    assert "In a segment of 20.0 MiB, 15.0 MiB of it free. 1 other block keeps it" in both
    assert "second model.py:2" in both
    assert "17.0 MiB of it free. This block alone keeps the segment from being released." in alone


def test_an_instant_has_the_levels_that_the_program_reached(data: Data, view: View) -> None:
    words = shown(data, view, "i", 3)  # a segment, the parameters, one activation

    assert "28.0 MiB" in words
    assert "512 MiB" in words
    assert "8.00 MiB allocated" in words
    assert "__init__ model.py:5 20.0 MiB" in words


def test_a_step_has_its_peak_and_that_of_its_phases(data: Data, view: View) -> None:
    words = shown(data, view, "p1")

    assert "as high as the step before" in words
    assert "86.0 MiB" in words  # 20 of parameters, 8 times 8 of activations, 2 of a gradient
    assert "forward 84.0 MiB" in words


def test_a_line_has_its_live_bytes_and_its_stack(data: Data, view: View) -> None:
    found = data.ask(view, "lifetimes")
    stack = int(found.stack_id[np.flatnonzero(found.block_size == 4 * MIB)[0]])
    words = shown(data, view, f"l{stack}", 3)

    assert "AdamW.step model.py:30" in words
    assert "12.0 MiB  in 3 blocks" in words
    assert "train.py:88" in words


@pytest.mark.parametrize("what", ["b99999999", "p77", "l123456", "f9999", "x1", "", "b-1", "i\u0663"])
def test_what_is_not_there_is_said_and_nothing_fails(data: Data, view: View, what: str) -> None:
    assert shown(data, view, what) == "This recording has nothing of that name."


@pytest.mark.parametrize(
    ("sent", "kept"), [("b12", "b12"), ("i", "i"), ("<b>", ""), ("b1" * 40, ""), ("x3", "")]
)
def test_the_address_keeps_a_selection_and_nothing_else(sent: str, kept: str) -> None:
    assert restore({"sel": sent}).sel == kept


QUERIES = ["", "&w=abc", "&w=10&a=nan&b=1", "&w=10&a=1", "&w=10&a=5&b=2&at=1e400", "&w=10&at=-7", "&w=1e308",
           "&w=10&a=-1e300&b=1e300&at=99999999999999999999"]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_whatever_is_asked_of_the_timeline_is_answered_or_refused(data: Data, query: str) -> None:
    client = build_app(data, Access(None)).server.test_client()
    answer = client.get(
        f"/api/timeline?run={next(iter(data.runs.paths()))}{query}", base_url="http://127.0.0.1"
    )

    assert answer.status_code in (200, 400)
