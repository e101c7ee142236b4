"""Exports of tables lose nothing: what is read back equals the recording, column for column."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from vramscope import export, registry
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Marks, Note, Phases, Steps
from vramscope.model.recording import Recording, Run
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

ODD = 'say "hi", <module>\nline two'
HIGH = 2**64 - 512


def exported(rank: int = 0) -> Recording:
    """A block per odd value: the highest address, text with separators, every table filled."""
    builder = StackBuilder()
    stack = builder.add([(ODD, "/home/me/train.py", 7), ("main", "/home/me/train.py", 99)])
    segments = Segments.of(address=[HIGH], size=[512], stream=[7], is_large=[True], stack_id=[stack])
    blocks = Blocks.of(address=[HIGH], size=[512], state=[BlockState.INACTIVE])
    return Recording(
        source="simulated",
        process=Process(rank=rank, world_size=2, torch="2.13.0", allocator={"a": "1", "b": "2"}),
        device=Device(index=1, kind="simulated"),
        trace=Trace.of(
            action=[Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.ALLOC],
            time_ns=[10, 20, 30, 2**62],
            address=[HIGH, HIGH, HIGH, HIGH],
            size=[500, 500, 500, 1],
            block_size=[512, 512, 512, 512],
            stream=[7, 7, 7, HIGH],
            pool=[0, 0, 0, 1],
            stack_id=[stack, 0, 0, stack - 1],
        ),
        stacks=builder.build(),
        initial=Snapshot(segments=segments, blocks=blocks),
        final=Snapshot(event=4, segments=segments, blocks=blocks),
        pools=((0, 0), (3, 5)),
        marks=Marks.of(kind=[0, 5], phase=[1, 0], time_ns=[1, 2], name=[0, 1], names=("", ODD)),
        steps=Steps.of(index=[0], end_event=[4], end_ns=[40]),
        phases=Phases.of(phase=[1], step=[0], end_event=[4], name=[1], names=("", ODD)),
        labels=Labels.of(event=[1], address=[HIGH], category=[3], name=[1], names=("", ODD)),
        holders=Holders.of_paths([(1, HIGH, [("global", ODD, "a.py"), ("item", 3, "list", 2**62)])]),
        counters=Counters.of(time_ns=[5], event=[-1], device_used_bytes=[2**40], allocated_bytes=[-1]),
        notes=(Note("starts_late", ODD, 3),),
    )


def folder(tmp_path, name: str):
    run = Run("run", "run", (exported(0), exported(1)))
    files = registry.part(export, export.Export, name).write(run, tmp_path / "out")
    found = sorted(file for file in (tmp_path / "out").rglob("*") if file.is_file())

    assert sorted(files) == found
    assert {file.parent.name for file in files} == {"rank0-device1", "rank1-device1"}
    return tmp_path / "out" / "rank1-device1"


def parquet(home, table: str) -> dict[str, list]:
    return pq.read_table(home / f"{table}.parquet").to_pydict()


def csv(home, table: str) -> dict[str, list]:
    """A table as text, so that no reader's guess hides a loss."""
    return pd.read_csv(home / f"{table}.csv", dtype=str, keep_default_na=False).to_dict("list")


READERS = {"parquet": parquet, "csv": csv}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("table", ["trace", "steps", "phases", "marks", "labels", "holders", "counters"])
def test_every_column_of_every_table_comes_back(tmp_path, name, table):
    file = {"trace": "events", "counters": "samples"}.get(table, table)
    read = READERS[name](folder(tmp_path, name), file)
    words = {"action", "kind", "phase", "category", *getattr(exported(1), table).TEXT_COLUMNS}

    for column, values in getattr(exported(1), table).columns():
        if column not in words:
            assert [int(value) for value in read[column]] == values.tolist(), column


@pytest.mark.parametrize("name", READERS)
def test_codes_and_names_become_their_words(tmp_path, name):
    home = folder(tmp_path, name)
    read = READERS[name]

    assert read(home, "events")["action"] == ["ALLOC", "FREE_REQUESTED", "FREE_COMPLETED", "ALLOC"]
    assert read(home, "marks")["kind"] == ["PHASE_BEGIN", "MARK"]
    assert read(home, "marks")["name"] == ["", ODD]
    assert read(home, "phases")["phase"] == ["FORWARD"]
    assert read(home, "labels")["category"] == ["GRADIENT"]
    assert read(home, "holders")["kind"] == ["global", "item"]
    assert read(home, "holders")["name"] == [ODD, "3"]
    assert read(home, "initial_blocks")["state"] == ["INACTIVE"]


@pytest.mark.parametrize("name", READERS)
def test_stacks_are_text_beside_their_id_and_whole_in_their_own_table(tmp_path, name):
    home = folder(tmp_path, name)
    allocations = READERS[name](home, "allocations")
    stacks = READERS[name](home, "stacks")

    assert allocations["stack"] == [
        f"{ODD} (/home/me/train.py:7) ← main (/home/me/train.py:99)",
        "main (/home/me/train.py:99)",
    ]
    assert stacks["function"] == ["", "main", ODD]
    assert [int(line) for line in stacks["line"]] == [0, 99, 7]


@pytest.mark.parametrize("name", READERS)
def test_allocations_are_paired_with_their_frees(tmp_path, name):
    read = READERS[name](folder(tmp_path, name), "allocations")

    assert [int(event) for event in read["alloc_event"]] == [0, 3]
    assert [int(event) for event in read["free_event"]] == [1, -1]
    assert read["stack"][0].startswith(ODD)


@pytest.mark.parametrize("name", READERS)
def test_where_it_ran_pools_and_notes_are_tables_too(tmp_path, name):
    home = folder(tmp_path, name)
    about = READERS[name](home, "recording")
    pools = READERS[name](home, "pools")
    notes = READERS[name](home, "notes")

    assert (about["source"], about["torch"], about["allocator"]) == (["simulated"], ["2.13.0"], ["a=1; b=2"])
    assert [int(rank) for rank in about["rank"]] == [1]
    assert [int(owner) for owner in pools["owner"]] == [0, 3]
    assert (notes["code"], notes["text"]) == (["starts_late"], [ODD])


@pytest.mark.parametrize("name", READERS)
def test_an_empty_recording_exports_empty_tables(tmp_path, name):
    files = registry.part(export, export.Export, name).write(Run("r", "r", (Recording(),)), tmp_path)

    assert READERS[name](tmp_path / "rank0-device0", "events")["action"] == []
    assert len(files) == len(np.unique([file.name for file in files]))


def test_a_code_of_a_newer_version_is_kept_as_its_number(tmp_path):
    recording = Recording(trace=Trace.of(action=[0, 77], size=[1, 1], block_size=[512, 512]))
    registry.part(export, export.Export, "parquet").write(Run("r", "r", (recording,)), tmp_path)

    assert parquet(tmp_path / "rank0-device0", "events")["action"] == ["ALLOC", "77"]


FORMULAS = (
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
    "'quoted",
    "=",
)
PLAIN = ("", "forward", "<module>", "a=b", "1", " =1", "é", '"=1"')


def test_no_text_of_a_csv_file_is_a_formula_and_numbers_stay_numbers(tmp_path):
    builder = StackBuilder()
    for number, text in enumerate((*FORMULAS, *PLAIN), 1):
        builder.add([(text, text, -number)])
    trace = Trace.of(action=[Action.ALLOC], size=[512], block_size=[512], address=[HIGH], time_ns=[-5])
    notes = tuple(Note("code", text) for text in FORMULAS)
    recording = Recording(trace=trace, stacks=builder.build(), notes=notes)
    registry.part(export, export.Export, "csv").write(Run("r", "r", (recording,)), tmp_path)
    home = tmp_path / "rank0-device0"
    stacks, texts = csv(home, "stacks"), csv(home, "notes")["text"]

    # One apostrophe before it, and nothing else: whoever reads the file back takes one away.
    assert stacks["function"][1:] == [*(f"'{text}" for text in FORMULAS), *PLAIN]
    assert texts == [f"'{text}" for text in FORMULAS]
    assert [int(line) for line in stacks["line"]] == [0, *(-n for n in range(1, len(FORMULAS + PLAIN) + 1))]
    assert [int(time_ns) for time_ns in csv(home, "events")["time_ns"]] == [-5]


def test_parquet_keeps_every_text_as_it_is(tmp_path):
    notes = tuple(Note("code", text) for text in FORMULAS)
    registry.part(export, export.Export, "parquet").write(Run("r", "r", (Recording(notes=notes),)), tmp_path)

    assert parquet(tmp_path / "rank0-device0", "notes")["text"] == list(FORMULAS)
