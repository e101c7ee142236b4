"""The menu says of a page, before it is opened, whether anything lies behind it."""

from pathlib import Path
from typing import Any

from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import findings
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import pages
from vramscope.dashboard.queries.rank_answers import queries_of
from vramscope.dashboard.server.app import _counted, _menu

from vramscope.model.recording import Outcome
from vramscope.model.trace import Action


def entries(data: Data, path: str = "/overview", run: str | None = None) -> dict[str, Any]:
    """Each entry's link by the title of its page."""
    run = run or next(iter(data.runs.paths()))
    address = Address(path, run=run)
    spans = _menu(pages(), data, address, data.view(address))
    return {next(page.title for page in pages() if page.path == href(span)): span.children for span in spans}


def href(span: Any) -> str:
    return span.children.href.partition("?")[0]


def test_what_has_nothing_to_show_is_dimmed_and_says_why(data):
    found = entries(data)

    assert found["Out of memory"].className == "nothing"
    assert found["Out of memory"].title == "No allocation failed"
    assert found["Waterfall"].title == "The device was not sampled"
    assert (found["Phases"].className, found["Phases"].title) == ("", "")
    assert found["Overview"].className == "here"


def test_a_run_without_steps_and_one_that_ran_out_of_memory(tmp_path, make_program):
    program = make_program(tmp_path / "died")
    program.begin()
    program.event(Action.OOM, 0, 1 << 30)
    program.flush()
    program.writer.close(Outcome.FINISHED)
    found = entries(Data(tmp_path))

    assert found["Phases"].title == "No steps were found"
    assert (found["Out of memory"].className, found["Out of memory"].title) == ("", "")
    assert [getattr(part, "children", part) for part in found["Out of memory"].children] == [
        "Out of memory",
        " 1",
    ]


def test_without_events_what_is_about_single_allocations_is_dimmed(tmp_path):
    path = tmp_path / "levels.csv"
    path.write_text(
        "timestamp, index, memory.used [MiB], memory.total [MiB]\n"
        "2026/01/03 15:36:53.507, 0, 1129 MiB, 40960 MiB\n"
    )
    found = entries(Data(tmp_path))

    dimmed = {name for name, link in found.items() if link.title == "No single allocation was recorded"}
    assert dimmed == {"Peak", "Allocations", "Fragmentation", "Leaks", "Out of memory", "Fit"}
    assert found["Waterfall"].className == ""


def test_findings_are_counted_once_they_are_known():
    data = Data(Path(__file__).parents[3] / "sample_traces")
    run = next(run for run, path in data.runs.paths().items() if path.name == "gan-retain-graph")
    before = entries(data, "/peak", run)["Leaks"].children
    found = findings(data, data.view(Address(run=run))).findings
    after = entries(data, "/peak", run)["Leaks"].children

    assert before == "Leaks"
    assert [getattr(part, "children", part) for part in after] == [
        "Leaks",
        f" {sum(each.kind in {'leak', 'growing_batch'} for each in found)}",
    ]


def test_ranks_are_offered_where_there_are_several(tmp_path, make_program):
    for name, n_ranks in (("one", 1), ("two", 2)):
        for rank in range(n_ranks):
            program = make_program(tmp_path / name, rank=rank)
            program.begin()
            program.flush()
            program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)
    one, two = sorted(data.runs.paths())

    assert "Ranks" not in entries(data, run=one)
    assert "Ranks" in entries(data, "/ranks", run=one)
    assert [getattr(part, "children", part) for part in entries(data, run=two)["Ranks"].children] == [
        "Ranks",
        " 2",
    ]


def test_the_page_of_all_ranks_counts_as_the_rank_that_other_pages_open(tmp_path, make_program):
    for rank in range(9):
        program = make_program(tmp_path / "many", rank=rank)
        program.begin()
        for _ in range(2 if rank == 4 else 0):
            program.event(Action.OOM, 0, 1 << 30)
        program.flush()
        program.writer.close(Outcome.FAILED if rank == 4 else Outcome.FINISHED)
    data = Data(tmp_path)
    address = Address("/ranks", run=next(iter(data.runs.paths())))
    before = _counted(data, address, is_opened=True)
    queries_of(data).get(address.run)
    unopened = _counted(data, address)
    opened = _counted(data, address, is_opened=True)

    assert before is unopened is None
    assert opened is not None
    assert opened.recording.process.rank == 4
    links = [span.children for span in _menu(pages(), data, address, None)]
    assert [
        part.children for part in (link.children[1] for link in links if type(link.children) is list)
    ] == [" 2", " 9"]
    assert all(f"run={address.run}" in link.href for link in links if "run=" in link.href)
