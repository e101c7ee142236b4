"""Twenty questions have one answer each: from the function, the command, the agent and the page.

Thirteen kinds of recordings are asked, among them those that lack something: what one of the four says of
them, every other says too.
"""

import contextlib
import io
import json
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plotly.utils
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.components import header
from vramscope.dashboard.components.prose import sentence
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import Context, pages
from vramscope.dashboard.queries.settings_search import searches

import vramscope
from vramscope import cli
from vramscope.analysis.fit import Question
from vramscope.analysis.fit.answer import Target
from vramscope.analysis.verdicts import Verdict, why_not
from vramscope.analysis.verdicts.missing import Part
from vramscope.commands._mcp_tools import Tools
from vramscope.errors import FormatError
from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Marks, Note
from vramscope.model.recording import Outcome, Recording
from vramscope.model.trace import Action
from vramscope.store.write.writer import Writer
from vramscope.units import format_bytes

MIB = 1 << 20
ROOT = Path(__file__).parents[3]
CARD_BYTES = 24 << 30
NEVER_A_PID = 2**22 + 1

QUESTIONS = (
    "peak allocated",
    "peak reserved",
    "end allocated",
    "end reserved",
    "reserved above allocated",
    "peaks are exact",
    "events",
    "steps",
    "outcome",
    "top line at the peak",
    "top category at the peak",
    "kinds of findings",
    "claims of findings",
    "growth",
    "what is missing",
    "notes",
    "failed allocations",
    "fits a card of 24 GiB",
    "largest saving of a setting",
    "keeps a limit of 1 TiB",
)


# ------------------------------------------------------------------------------------------ the recordings


def finished(folder: Path, open_program: Callable[..., Any]) -> None:
    program = open_program(folder / "run")
    program.begin()
    for _ in range(9):
        program.step()
    program.writer.close(Outcome.FINISHED)


def live(folder: Path, open_program: Callable[..., Any]) -> None:
    program = open_program(folder / "run")
    program.begin()
    for _ in range(9):
        program.step()


def damaged(folder: Path, open_program: Callable[..., Any]) -> None:
    finished(folder, open_program)
    file = folder / "run" / "rank0" / "events-0.arrows"
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 500] = bytes(500)
    file.write_bytes(data)


def dead(folder: Path, open_program: Callable[..., Any]) -> None:
    process = Process(torch="2.13.0", host=socket.gethostname(), pid=NEVER_A_PID)
    devices = [Device(kind="simulated", total_bytes=1 << 30)]
    program = open_program(folder / "other")
    program.writer = Writer(
        folder / "run", source="simulated", process=process, devices=devices, started_ns=1
    )
    shutil.rmtree(folder / "other")
    program.begin()
    for _ in range(9):
        program.step()


def out_of_memory(folder: Path, open_program: Callable[..., Any]) -> None:
    program = open_program(folder / "run")
    program.begin()
    for _ in range(12):
        program.step()
        program.malloc(4 * MIB, program.stack("remember", 77))
    program.event(Action.OOM, 0, 600 * MIB, program.stack("ask", 91))
    program.flush()
    program.writer.close(Outcome.FAILED, "torch.OutOfMemoryError: CUDA out of memory")


def several_devices(folder: Path, open_program: Callable[..., Any]) -> None:
    for rank in (0, 1):
        program = open_program(folder / "run", rank=rank)
        program.begin()
        for _ in range(9):
            program.step()
            if rank:
                program.malloc(MIB, program.stack("remember", 77))
        program.flush()
        program.writer.close(Outcome.FINISHED)


def counters(folder: Path, _: Callable[..., Any]) -> None:
    process = Process(torch="2.13.0", host=socket.gethostname())
    writer = Writer(folder / "run", source="counters", process=process, devices=[Device()], started_ns=1)
    writer.note(
        Note(NoteCode.COUNTERS_ONLY, "recorded with mode='counters': levels at moments, no events"), 0
    )
    writer.append(Marks.of(), 0)
    samples = {"allocated_bytes": [5 * MIB, 9 * MIB, 3 * MIB], "reserved_bytes": [20 * MIB] * 3}
    writer.append(Counters.of(time_ns=[10, 20, 30], **samples), 0)
    writer.close(Outcome.FINISHED)


def predicted(folder: Path, _: Callable[..., Any]) -> None:
    torch = pytest.importorskip("torch")

    def program() -> None:
        model = torch.nn.Linear(512, 512, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    vramscope.predict(program, directory=folder / "run")


def predicted_to_run_out(folder: Path, _: Callable[..., Any]) -> None:
    torch = pytest.importorskip("torch")

    def program() -> None:
        model = torch.nn.Linear(4096, 4096, device="cuda")
        model(torch.randn(4096, 4096, device="cuda")).square().mean().backward()

    vramscope.predict(program, directory=folder / "run", capacity="842MiB")


def late(folder: Path, _: Callable[..., Any]) -> None:
    shutil.copytree(ROOT / "sample_traces" / "transformer", folder / "run")


def old(folder: Path, _: Callable[..., Any]) -> None:
    shutil.copytree(ROOT / "tests" / "samples" / "without-checksums" / "transformer", folder / "run")


def snapshot(folder: Path, _: Callable[..., Any]) -> None:
    shutil.copy(ROOT / "tests" / "captures" / "ring.pickle.gz", folder / "run.pickle.gz")


def nvidia_smi(folder: Path, _: Callable[..., Any]) -> None:
    head = "timestamp, index, memory.used [MiB], memory.total [MiB]\n"
    rows = ((53, 1129), (54, 2000), (55, 1500))
    lines = [f"2026/01/03 15:36:{second}.507, 0, {used} MiB, 40960 MiB\n" for second, used in rows]
    (folder / "run.csv").write_text(head + "".join(lines))


RECORDINGS = (
    finished, live, damaged, dead, predicted, late, counters, snapshot, several_devices, out_of_memory,
    nvidia_smi, old, predicted_to_run_out,
)  # fmt: skip


# --------------------------------------------------------------------------------------- the four who answer


def by_function(path: Path) -> list[dict[str, Any]]:
    """Ask Python."""
    return [_of_recording(recording) for recording in vramscope.load(path).recordings]


def _of_recording(recording: Recording) -> dict[str, Any]:
    summary, found = recording.summary(), recording.findings()
    peak, end = _levels(summary)
    top = summary.live[0] if summary.live else None
    is_known = top is not None and bool(top.frames) and not top.is_library
    missing = recording.verdicts().missing
    fit = recording.fit(Question(targets=(Target("a card of 24.0 GiB", CARD_BYTES),)))
    unsure = why_not(missing, Verdict.LIMIT)
    return {
        "peak allocated": peak["allocated"],
        "peak reserved": peak["reserved"],
        "end allocated": end["allocated"],
        "end reserved": end["reserved"],
        "reserved above allocated": _above(peak["reserved"], peak["allocated"]),
        "peaks are exact": summary.sampled.is_exact
        if summary.sampled
        else recording.verdicts().peak_is_exact,
        "events": len(recording.trace),
        "steps": len(summary.steps),
        "outcome": recording.outcome.value,
        "top line at the peak": (top.frames[0].file, top.frames[0].line) if is_known else None,
        "top category at the peak": _most(summary.categories),
        "kinds of findings": [str(each.kind) for each in found],
        "claims of findings": [each.claim for each in found],
        "growth": recording.verdicts().growth.text,
        "what is missing": [each.text for each in missing],
        "notes": [note.text for note in recording.notes],
        "failed allocations": sum(each.kind == "oom" for each in found),
        "fits a card of 24 GiB": fit.problem or fit.fits,
        "largest saving of a setting": fit.problem
        or _saving(
            fit.settings.base.peak_reserved_bytes,
            [each.outcome.peak_reserved_bytes for each in fit.settings.trials if each.outcome.fits],
        ),
        "keeps a limit of 1 TiB": bool(peak["allocated"] is not None and not unsure and not summary.sampled),
    }


def _levels(summary: Any) -> tuple[dict[str, int | None], dict[str, int | None]]:
    names = ("allocated", "reserved")
    if summary.sampled is not None:
        taken = summary.recording.counters
        return (
            {name: _or_none(getattr(summary.sampled, f"{name}_bytes")) for name in names},
            {name: _or_none(int(getattr(taken, f"{name}_bytes")[-1])) for name in names},
        )
    return {name: summary.peak[name].n_bytes for name in names}, {name: summary.end[name] for name in names}


def by_command(path: Path) -> list[dict[str, Any]]:
    """Ask the command line for JSON."""
    report, leaks = (json.loads(_printed(word, path, "--json")) for word in ("report", "leaks"))
    check = json.loads(_printed("check", path, "--json", "--max-peak", "1TiB"))["checks"]
    return [
        _of_json(report, each, leaks["recordings"][number], check[number], _fit_json(path, each))
        for number, each in enumerate(report["recordings"])
    ]


def by_agent(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Ask the tools of ``vramscope mcp``, whose commands run in this process."""
    monkeypatch.setattr(subprocess, "run", _in_this_process)
    tools = Tools(path.parent)
    report, leaks = (json.loads(tools._asked(word, [path.name])) for word in ("report", "leaks"))
    return [
        _of_json(report, each, leaks["recordings"][number], None, _fit_of_agent(tools, path, each))
        for number, each in enumerate(report["recordings"])
    ]


def _of_json(report: Any, each: Any, grown: Any, check: Any, fit: Any) -> dict[str, Any]:
    found = [
        one for one in report["findings"] if (one["rank"], one["device"]) == (each["rank"], each["device"])
    ]
    top = each["live_at_peak"][0]["where"] if each["live_at_peak"] else None
    peak = each["peak"]
    answers = {
        "peak allocated": peak["allocated_bytes"],
        "peak reserved": peak["reserved_bytes"],
        "end allocated": each["end"]["allocated_bytes"],
        "end reserved": each["end"]["reserved_bytes"],
        "reserved above allocated": _above(peak["reserved_bytes"], peak["allocated_bytes"]),
        "peaks are exact": each["peak_is_exact"],
        "events": each["events"],
        "steps": len(each["steps"]),
        "outcome": each["outcome"],
        "top line at the peak": (top["file"], top["line"]) if top else None,
        "top category at the peak": _most(each["categories_at_peak"]),
        "kinds of findings": [one["kind"] for one in found],
        "claims of findings": [one["claim"] for one in found],
        "growth": each["growth"]["text"],
        "what is missing": [one["text"] for one in each["missing"]],
        "notes": [note["text"] for note in each["notes"]],
        "failed allocations": sum(one["kind"] == "oom" for one in found),
        "fits a card of 24 GiB": fit if isinstance(fit, str) else fit["recordings"][0]["fits"],
        "largest saving of a setting": fit
        if isinstance(fit, str)
        else _saving(
            fit["settings"]["as_it_is"]["peak_reserved_bytes"],
            [one["peak_reserved_bytes"] for one in fit["settings"]["trials"] if one["fits"] is not False],
        ),
    }
    assert grown["growth"]["text"] == answers["growth"]
    if check is not None:
        answers["keeps a limit of 1 TiB"] = check["passed"]
    return answers


def _fit_json(path: Path, each: Any) -> Any:
    options = ["--capacity", "24GiB", "--rank", str(each["rank"]), "--device", str(each["device"])]
    code, out, err = _called("fit", str(path), "--json", *options)
    return json.loads(out) if code == 0 else err.strip().partition(f"{path}: ")[2]


def _fit_of_agent(tools: Tools, path: Path, each: Any) -> Any:
    options = ["--capacity=24GiB", f"--rank={each['rank']}", f"--device={each['device']}"]
    try:
        return json.loads(tools._asked("fit", [path.name], options))
    except FormatError as error:
        return str(error).partition(f"{path}: ")[2]


def _called(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(words))
    return code, out.getvalue(), err.getvalue()


def _printed(word: str, path: Path, *options: str) -> str:
    return _called(word, str(path), *options)[1]


def _in_this_process(words: list[str], **_: Any) -> Any:
    code, out, err = _called(*words[3:])
    return SimpleNamespace(returncode=code, stdout=out, stderr=err)


def _above(reserved: int | None, allocated: int | None) -> int | None:
    return None if reserved is None or allocated is None else reserved - allocated


def _most(categories: Any) -> tuple[str, int] | None:
    return max(categories.items(), key=lambda each: each[1]) if categories else None


def _saving(base: int, others: list[int]) -> int | None:
    return base - min(others) if others else None


def _or_none(n_bytes: int) -> int | None:
    return None if n_bytes < 0 else n_bytes


# --------------------------------------------------------------------------------------------------- the test


@pytest.mark.parametrize("make", RECORDINGS, ids=[make.__name__ for make in RECORDINGS])
def test_twenty_questions_have_one_answer_each(tmp_path, open_program, monkeypatch, make):
    make(tmp_path, open_program)
    (path,) = [each for each in tmp_path.iterdir() if each.name.startswith("run")]

    answers = by_function(path)

    assert len(answers) >= 1
    assert all(tuple(each) == QUESTIONS for each in answers)
    for recording in vramscope.load(path).recordings:
        # What a dry run has answered about its own card stands in its recording.
        assert recording.prediction is None or recording.fit().fits == recording.prediction.fits
    assert by_command(path) == answers
    of_agent = by_agent(path, monkeypatch)
    assert of_agent == [
        {name: each[name] for name in QUESTIONS if name != "keeps a limit of 1 TiB"} for each in answers
    ]
    _check_the_text(path, answers)
    _check_the_pages(tmp_path, answers)


def _check_the_text(path: Path, answers: list[dict[str, Any]]) -> None:
    """What the command prints for people says the same."""
    report, leaks = (" ".join(_printed(word, path).split()) for word in ("report", "leaks"))
    code, check, _ = _called("check", str(path), "--max-peak", "1TiB")
    for each in answers:
        for name in ("peak allocated", "peak reserved"):
            assert each[name] is None or format_bytes(each[name]) in report, name
        for text in (*each["claims of findings"], *each["notes"]):
            assert " ".join(text.split()) in report
        assert ("lower bound" in report) == (not each["peaks are exact"] and each["events"] > 0)
        assert " ".join(each["growth"].split()) in leaks or "leak" in each["kinds of findings"]
        line = each["top line at the peak"]
        assert line is None or f"{Path(line[0]).name}:{line[1]}" in report
        assert (check.count("ok ") == len(answers)) == all(one["keeps a limit of 1 TiB"] for one in answers)
    assert (code == 0) == all(one["keeps a limit of 1 TiB"] for one in answers)
    _check_the_text_of_fit(path, answers)


def _check_the_text_of_fit(path: Path, answers: list[dict[str, Any]]) -> None:
    words = {True: ("Fits a card", "fits a card", "ust fits"), False: ("oes not fit",), None: ("not known",)}
    code, page, error = _called("fit", str(path), "--capacity", "24GiB")
    for each in answers:
        verdict = each["fits a card of 24 GiB"]
        if isinstance(verdict, str):
            assert code == 2
            assert verdict in error
        else:
            assert any(word in page for word in words[verdict])


def _check_the_pages(folder: Path, answers: list[dict[str, Any]]) -> None:
    """The pages say the same."""
    data = Data(folder)
    (name,) = data.runs.paths()
    data.read(name)
    recordings = data.view(Address(run=name)).run.recordings
    for each, recording in zip(answers, recordings, strict=True):
        at = {"rank": recording.process.rank, "device": recording.device.index}
        view = data.view(Address(run=name, **at))
        frame = _text([*header.incomplete(view), header.notes(view)])
        assert all(text in frame for text in each["notes"])
        lacks = any(lack.part in (Part.EVENTS, Part.STEPS) for lack in recording.verdicts().missing)
        assert ("Incomplete" in frame) == lacks
        assert not lacks or sentence(each["what is missing"][0]) in frame
        if each["events"]:
            _check_the_pages_of_events(data, name, at, each)


def _check_the_pages_of_events(data: Data, name: str, at: dict[str, int], each: dict[str, Any]) -> None:
    overview, leaks = (_shown(word, data, name, **at) for word in ("overview", "leaks"))
    for quantity in ("peak allocated", "peak reserved"):
        assert format_bytes(each[quantity]) in overview, quantity
    for claim in each["claims of findings"][:6]:
        # The heading has what failed, once; its finding says why.
        failed, _, why = claim.partition(". ")
        assert (why or claim)[1:60] in overview
        # The picture has the heading as its text.
        assert not why or overview.count(failed.partition(",")[0].rpartition(": ")[2]) == 2
    growth = sentence(each["growth"])
    assert growth[1:40] in leaks or "leak" in each["kinds of findings"]
    assert ("severity fine" in overview) <= (each["growth"] == "nothing grows from step to step")
    view = data.view(Address(run=name, **at))
    assert searches(data).of(view).wait(120)
    fit = _shown("fit", data, name, by="24576mib", **at)
    verdict = each["fits a card of 24 GiB"]
    if isinstance(verdict, str):
        assert verdict[1:] in fit
        return
    words = {True: "fits a card of 24.0 GiB", False: "It does not fit", None: "is not known"}
    assert words[verdict] in fit


def _shown(name: str, data: Data, run: str, **address: Any) -> str:
    page = next(page for page in pages() if page.name == name)
    return _text(page.layout(Context(data, Address(page.path, run=run, **address))))


def _text(layout: Any) -> str:
    text = json.dumps(layout, cls=plotly.utils.PlotlyJSONEncoder, ensure_ascii=False)
    return text.replace("\u00a0", " ")
