"""Findings have one order, the gravest first, and a finding that many ranks share is stated once."""

from vramscope.analysis.findings import collect, located, ranked, ranks_words, shared
from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding, Severity
from vramscope.model.recording import Recording


def found(kind: str, severity: str, n_bytes: int | None = None, claim: str = "", **rest) -> Finding:
    return Finding(kind, severity, claim or f"{kind} of {n_bytes} bytes", n_bytes=n_bytes, **rest)


def on(rank: int, device: int = 0) -> Recording:
    return Recording(process=Process(rank=rank), device=Device(index=device))


def test_errors_come_before_warnings_and_the_most_bytes_first_within_each():
    given = [
        found("a", "info", 9),
        found("b", "warning", 1),
        found("c", "warning", 5),
        found("d", "error", 0),
    ]

    assert [finding.kind for finding in ranked(given)] == ["d", "c", "b", "a"]
    assert [severity.value for severity in Severity] == ["error", "warning", "info"]


def test_the_error_of_a_later_device_comes_before_the_warnings_of_the_first():
    rows = located([(on(0), [found("a", "warning", 9)]), (on(0, 1), [found("oom", "error", 1)])])

    assert [(row.finding.kind, row.rank, row.device) for row in rows] == [("oom", 0, 1), ("a", 0, 0)]


def test_what_differs_in_numbers_alone_is_stated_once_with_its_ranks():
    rows = located(
        (on(rank), [found("leak", "warning", 100 + rank, f"{rank}.5 MiB grow", file="a.py", line=3)])
        for rank in range(64)
    )
    rows += located([(on(7), [found("leak", "warning", 1, "2.0 MiB grow", file="a.py", line=4)])])

    once = shared(rows)

    assert [(each.finding.n_bytes, each.rank, ranks_words(each.of), each.differs) for each in once] == [
        (163, 63, "ranks 0-63", True),
        (1, 7, "rank 7", False),
    ]


def test_ranks_are_named_as_ranges_and_devices_where_they_tell_more():
    assert ranks_words([(0, 0)]) == "rank 0"
    assert ranks_words([(0, 0), (1, 0), (2, 0), (5, 0)]) == "ranks 0-2, 5"
    assert ranks_words([(0, 0), (0, 1)]) == "rank 0, devices 0-1"
    assert ranks_words([(3, 1)]) == "rank 3, device 1"
    assert ranks_words([(0, 0), (1, 1)]) == "ranks 0-1"


def test_every_analysis_but_the_peak_is_asked_once():
    asked: list[str] = []
    recording = Recording()

    def ask(name: str) -> object:
        asked.append(name)
        return getattr(recording, name)()

    assert collect(ask) == []
    assert "peak" not in asked
    assert len(set(asked)) == len(asked)
    assert {"leaks", "oom", "fragmentation", "waterfall"} <= set(asked)
