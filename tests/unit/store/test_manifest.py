"""A manifest says whether this vramscope can read the trace; a hostile one is refused with its path."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramscope.errors import StoreError
from vramscope.model.recording import Outcome
from vramscope.model.trace import Trace
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

Change = Callable[..., None]


@pytest.fixture
def manifest(run_dir: Path, new_writer: Callable[..., Writer]) -> Path:
    """The manifest of a run with one event that ended well."""
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    writer.close(Outcome.FINISHED)
    return run_dir / "rank0" / "manifest.json"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_newer_minor_with_unknown_keys_is_read(manifest: Path) -> None:
    change(
        manifest,
        schema={"major": 1, "minor": 99, "patch": "x"},
        invented=[1],
        devices=[{"index": 0, "colour": 1}],
    )

    assert len(Reader(manifest.parent).run.recordings[0].trace) == 1


def test_a_newer_major_is_refused_with_advice(manifest: Path) -> None:
    change(manifest, schema={"major": 3, "minor": 0})

    with pytest.raises(
        StoreError, match=r"manifest\.json: written by a newer vramscope .*pip install -U vramscope"
    ):
        Reader(manifest.parent)


def test_missing_keys_mean_unknown(manifest: Path) -> None:
    manifest.write_text('{"schema": {"major": 1}}')
    run = Reader(manifest.parent).run

    assert run.outcome is Outcome.RUNNING  # not closed, of an unknown process, and written just now
    assert (run.started_ns, run.recordings[0].device.name) == (0, "")


def test_an_outcome_of_a_newer_writer_still_means_that_it_ended(manifest: Path) -> None:
    change(manifest, outcome="paused_forever")

    assert Reader(manifest.parent).run.outcome is Outcome.FINISHED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\0",
        '"x"',
        "[" * 100_000,
        "1" * 5000,
        '{"schema": 1}',
        "{}",
        b"\xff\xfe".decode("latin-1"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_path(manifest: Path, text: str) -> None:
    manifest.write_text(text, encoding="latin-1")

    with pytest.raises(StoreError, match=r"rank0/manifest\.json: .*(manifest|schema)"):
        Reader(manifest.parent)


@pytest.mark.parametrize(
    "values",
    [
        {"source": 1},
        {"process": []},
        {"process": {"pid": "1"}},
        {"process": {"rank": True}},
        {"process": {"rank": 1.5}},
        {"process": {"rank": 10**30}},
        {"process": {"allocator": "x"}},
        {"devices": {}},
        {"devices": [1]},
        {"devices": [{"index": "../../../etc/passwd"}]},
        {"devices": [{"index": -1}]},
        {"devices": [{"index": 10**9}]},
        {"started_ns": None},
        {"outcome": 0},
        {"incarnation": 1},
        {"schema": {"major": "1"}},
        {"schema": {"major": 0}},
        {"schema": {"major": True}},
    ],
)
def test_a_wrong_type_is_refused_with_its_path(manifest: Path, values: dict[str, Any]) -> None:
    change(manifest, **values)

    with pytest.raises(StoreError, match=r"rank0/manifest\.json: .*damaged"):
        Reader(manifest.parent)


def test_a_manifest_beyond_reason_is_not_read_into_memory(manifest: Path) -> None:
    with manifest.open("r+b") as file:
        file.truncate(1 << 34)

    with pytest.raises(StoreError, match="larger than 16 MiB"):
        Reader(manifest.parent)


def test_a_damaged_rank_does_not_hide_the_others(manifest: Path, new_writer: Callable[..., Writer]) -> None:
    new_writer(rank=1, world_size=2).close(Outcome.FINISHED)
    manifest.write_text("{")
    run = Reader(manifest.parents[1]).run

    assert list(run.ranks) == [1]
    assert [note.code for note in run.notes] == ["rank_unreadable", "ranks_missing"]
    assert str(manifest) in run.notes[0].text


def test_a_name_is_data_however_it_looks(manifest: Path) -> None:
    change(manifest, devices=[{"index": 0, "name": "../../<script>", "kind": "/etc/passwd"}])

    assert Reader(manifest.parent).run.recordings[0].device.name == "../../<script>"
