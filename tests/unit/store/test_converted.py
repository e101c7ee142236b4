"""A foreign file is converted once; a conversion is used only for that very file, and only when whole."""

import os
import shutil
import struct
import time
import zlib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from vramscope import conversion_cache
from vramscope.conversion_cache import Limits, column_file
from vramscope.loading import load
from vramscope.model.device import Process
from vramscope.model.marks import Marks, Note
from vramscope.model.recording import Recording, Run
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Trace

LONG_AGO_S = 1_000_000
AT_ONCE = Limits(fewest_events=1000, settled_ns=0)
"""Limits under which small files that were just written are kept."""


def recorded(n_events: int = 5000) -> Run:
    numbers = np.arange(n_events)
    trace = Trace.of(
        action=numbers % 3, address=numbers * 512 + 2**47, size=numbers * 7, stack_id=numbers % 2
    )
    stacks = stacks_of([("f", "a.py", 3)], [("caf\udce9", "b.py", 4)])
    recording = Recording(
        process=Process(allocator={"max_split_size": "-1"}),
        trace=trace,
        stacks=stacks,
        initial=Snapshot(segments=Segments.of(address=[512], size=[1024]), blocks=Blocks.of(size=[1024])),
        pools=((0, 0), (1, 7)),
        marks=Marks.of(kind=[2], names=("", "step")),
        notes=(Note("gap", "something is missing", 3),),
    )
    return Run("a", "a.pickle", (recording, replace(recording, source="other")), notes=(Note("x", "y"),))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.pickle"
    path.write_bytes(b"foreign")
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(source: Path, run: Run | None = None) -> Path:
    """Where it was put."""
    conversion_cache.keep(run or recorded(), source, conversion_cache.identity(source), AT_ONCE)
    (found,) = (source.parent / "cache").iterdir()
    return found


def found(source: Path) -> Run | None:
    return conversion_cache.find(source, conversion_cache.identity(source))


def test_what_was_kept_is_found_whole(source: Path) -> None:
    kept(source)

    run = found(source)

    assert run is not None
    assert run.path == str(source)
    assert run.notes == recorded().notes
    for mine, yours in zip(run.recordings, recorded().recordings, strict=True):
        assert (mine.source, mine.pools, mine.notes, mine.process) == (
            yours.source,
            yours.pools,
            yours.notes,
            yours.process,
        )
        assert mine.stacks.strings == yours.stacks.strings
        for name in ("trace", "stacks", "marks", "steps", "counters"):
            for column, values in getattr(yours, name).columns():
                assert np.array_equal(getattr(getattr(mine, name), column), values), (name, column)
        assert mine.initial.blocks.size.tolist() == [1024]
    assert run.recordings[0].stacks is run.recordings[1].stacks


def test_columns_are_mapped_and_cannot_be_written(source: Path) -> None:
    kept(source)

    run = found(source)

    assert run is not None
    address = run.recordings[0].trace.address
    assert not address.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        address[0] = 1


def test_a_changed_file_is_not_taken_for_its_older_self(source: Path) -> None:
    kept(source)
    source.write_bytes(b"FOREIGN")
    os.utime(source, (LONG_AGO_S, LONG_AGO_S))

    assert found(source) is None


def test_another_file_in_its_place_is_not_taken_for_it(source: Path) -> None:
    kept(source)
    other = source.with_name("b")
    shutil.copy2(source, other)
    other.replace(source)

    assert found(source) is None


def test_a_conversion_by_other_code_does_not_count(source: Path) -> None:
    kept(source)
    other = conversion_cache.identity(source) | {"code": "other"}

    assert conversion_cache.find(source, other) is None


def test_a_change_of_any_module_of_the_converting_code_invalidates_conversions(
    source: Path, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    inner = package / "formats" / "inner"
    inner.mkdir(parents=True)
    (inner / "reader.py").write_text("VERSION = 1")
    for name in ("allocator", "model", "store"):
        (package / name).mkdir()
    before = conversion_cache.identity(source, package=package)
    place = kept(source)
    with place.open("wb") as file:
        column_file.write(file, recorded(), before)
    assert conversion_cache.find(source, conversion_cache.identity(source, package=package)) is not None

    (inner / "reader.py").write_text("VERSION = 1000")

    assert conversion_cache.find(source, conversion_cache.identity(source, package=package)) is None


def test_any_changed_byte_is_noticed_and_the_conversion_removed(source: Path) -> None:
    place = kept(source)
    whole = place.read_bytes()

    for at in range(0, len(whole), 1009):
        if set(whole[at - at % 64 : at - at % 64 + 64]) == {0}:
            continue  # may be padding
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        run = found(source)
        assert run is None or all(
            np.array_equal(column, dict(recorded().recordings[0].trace.columns())[name])
            for name, column in run.recordings[0].trace.columns()
        )
    place.write_bytes(whole[:64] + bytes([whole[64] ^ 1]) + whole[65:])
    assert found(source) is None
    assert not place.exists()


def test_a_conversion_cut_anywhere_does_not_count(source: Path) -> None:
    place = kept(source)
    whole = place.read_bytes()

    for size in range(0, len(whole), 4999):
        place.write_bytes(whole[:size])
        assert found(source) is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("vramscope.model.table", "data_frame"),
        ("vramscope.model.recording", "dataclass"),
        ("vramscope.model.recording", "Path"),
        ("vramscope.loading", "Follower"),
    ],
)
def test_only_classes_of_the_model_can_be_named_in_it(source: Path, module: str, name: str) -> None:
    place = kept(source)
    assert found(source) is not None
    # A whole file, with a call of another name in place of the run.
    calls = f"c{module}\n{name}\n(Vtouch x\ntR.".encode()
    trailer = struct.pack("<QQQ16s", 0, len(calls), zlib.crc32(calls), b"vramscope-mapped")
    place.write_bytes(calls + trailer)

    with pytest.raises(column_file.DamagedError, match="is not of the model"):
        column_file.read(place)
    assert found(source) is None


def test_small_files_and_files_just_written_are_not_kept(source: Path, cache: Path) -> None:
    conversion_cache.keep(recorded(999 // 2), source, conversion_cache.identity(source), AT_ONCE)
    source.touch()
    settling = replace(AT_ONCE, settled_ns=Limits().settled_ns)
    conversion_cache.keep(recorded(), source, conversion_cache.identity(source), settling)

    assert not cache.exists()


def test_a_file_that_changed_while_it_was_read_is_not_kept(source: Path, cache: Path) -> None:
    before = conversion_cache.identity(source)
    source.write_bytes(b"more than before")
    conversion_cache.keep(recorded(), source, before, AT_ONCE)

    assert not cache.exists()


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_it_can_be_switched_off(
    source: Path, monkeypatch: pytest.MonkeyPatch, word: str, tmp_path: Path
) -> None:
    kept(source)
    monkeypatch.setenv("VRAMSCOPE_CACHE", word)
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    conversion_cache.keep(recorded(), source, conversion_cache.identity(source), AT_ONCE)

    assert found(source) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_without_a_word_it_lies_where_the_standard_says(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VRAMSCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))

    conversion_cache.keep(recorded(), source, conversion_cache.identity(source), AT_ONCE)

    assert len(list((tmp_path / "own" / "vramscope").iterdir())) == 1
    assert list(source.parent.glob("a.*")) == [source]


@pytest.mark.parametrize("in_the_way", ["file", "full"])
def test_a_directory_that_cannot_be_written_only_means_no_conversion(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, in_the_way: str
) -> None:
    if in_the_way == "file":
        cache.write_text("not a directory")
    else:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(column_file, "write", full)

    conversion_cache.keep(recorded(), source, conversion_cache.identity(source), AT_ONCE)

    assert found(source) is None
    assert cache.is_file() or list(cache.iterdir()) == []


def test_the_conversions_used_longest_ago_make_room(tmp_path: Path, cache: Path) -> None:
    sources = []
    for number in range(4):
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(b"foreign")
        sources.append(path)
        conversion_cache.keep(recorded(), path, conversion_cache.identity(path), AT_ONCE)
        for place in cache.iterdir():
            os.utime(place, ns=(0, place.stat().st_mtime_ns - 10**9))
    assert found(sources[0]) is not None
    room = replace(AT_ONCE, largest_bytes=2 * next(cache.iterdir()).stat().st_size + 100)
    newest = tmp_path / "new.pickle"
    newest.write_bytes(b"foreign")

    conversion_cache.keep(recorded(), newest, conversion_cache.identity(newest), room)

    assert [found(path) is not None for path in [*sources, newest]] == [True, False, False, False, True]


def test_what_a_killed_process_left_is_removed_after_an_hour(source: Path, cache: Path) -> None:
    cache.mkdir()
    old, fresh = cache / "old.part", cache / "fresh.part"
    old.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(old, (time.time() - 4000, time.time() - 4000))
    foreign = cache / "notes.txt"
    foreign.write_text("mine")

    conversion_cache.keep(recorded(), source, conversion_cache.identity(source), AT_ONCE)

    assert not old.exists()
    assert fresh.exists()
    assert foreign.exists()


def test_load_opens_a_file_the_second_time_from_its_conversion(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + 3 * 10**9)  # later than the file may still change
    monkeypatch.setattr(import_module("vramscope.loading"), "_read_file", lambda *_: recorded(50_000))
    first = load(source)
    monkeypatch.setattr(
        import_module("vramscope.loading"), "_read_file", lambda *_: pytest.fail("read again")
    )

    second = load(source)

    assert not second.recordings[0].trace.address.flags.owndata
    assert np.array_equal(first.recordings[0].trace.address, second.recordings[0].trace.address)
