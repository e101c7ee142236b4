"""The dashboard shows runs in a store; the list of runs copies no events, and an opened run is followed."""

from types import SimpleNamespace

import fsspec
import pytest
import vramscope.dashboard as package
from vramscope.dashboard.address import Address
from vramscope.dashboard.queries.rank_answers import opened_address, queries_of
from vramscope.dashboard.queries.run_summaries import summarize
from vramscope.dashboard.runs import one_rank

from vramscope.errors import UnknownNameError

MIB = 1 << 20


@pytest.fixture
def store(summarized_job, tmp_path, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    put(files, summarized_job, "/all/a")
    yield SimpleNamespace(files=files, cache=tmp_path / "cache")
    files.store.clear()


def put(files, run, place):
    for path in run.rglob("*"):
        if path.is_file():
            files.pipe_file(f"{place}/{path.relative_to(run)}", path.read_bytes())


def events_of(store):
    return sorted(path.parent.name for path in store.cache.rglob("events-*"))


def test_the_list_shows_runs_from_their_summaries_and_a_page_opens_one(store):
    data = package._data("memory://all", list_every_s=0.0)
    (name,) = data.runs.paths()
    row = summarize(data, name)

    assert (row.name, row.n_devices, row.peak_allocated_bytes) == ("a", 8, 3 * 120 * MIB)
    assert events_of(store) == []
    view = data.view(Address("/overview", run=name, rank=5))
    assert len(view.recording.trace) == 3
    assert view.run.path == "memory://all/a"
    assert len(events_of(store)) == 8


def test_one_rank_of_a_run_opens_alone(store):
    data = package._data("memory://all", list_every_s=0.0)
    (name,) = data.runs.paths()
    queries_of(data).get(name)
    view = data.view(Address("/overview", run=one_rank(name, 5)))

    assert [each.process.rank for each in view.run.recordings] == [5]
    assert view.run.path == "memory://all/a/rank5"
    assert events_of(store) == ["rank5"]


@pytest.mark.parametrize(("n_ranks", "opened"), [(8, 8), (9, 1)])
def test_a_page_of_a_run_in_a_store_copies_the_events_of_one_rank_of_many(
    store, a_rank, with_summaries, tmp_path, n_ranks, opened
):
    for rank in range(n_ranks):
        a_rank(tmp_path / "many", rank, n_ranks)
    with_summaries(tmp_path / "many")
    put(store.files, tmp_path / "many", "/several/many")
    data = package._data("memory://several", list_every_s=0.0)
    (name,) = data.runs.paths()
    data.view(opened_address(data, Address("/overview", run=name, rank=3)))

    assert len(events_of(store)) == opened


def test_one_rank_of_a_local_run_opens_alone(job):
    data = package._data(job.parent)
    (name,) = data.runs.paths()
    view = data.view(Address("/overview", run=one_rank(name, 5)))
    data.refresh(one_rank(name, 5))

    assert [each.process.rank for each in view.run.recordings] == [5]
    assert not data.is_open(name)


def test_a_run_that_appears_in_the_store_appears_in_the_list(store, job):
    data = package._data("memory://all", list_every_s=0.0)
    assert len(data.runs.paths()) == 1
    put(store.files, job, "/all/b")
    data.runs._scanned_s = float("-inf")

    assert len(data.runs.paths()) == 2


def test_a_url_without_anything_is_one_line(store):  # noqa: ARG001
    from vramscope.cli import main

    with pytest.raises(UnknownNameError, match="memory://none: there is nothing"):
        package._data("memory://none", list_every_s=0.0)
    assert main(["serve", "memory://none", "--port", "0"]) == 2
