"""One prediction, whoever asks: the function, the command, an agent, and the recording that keeps it."""

import asyncio
import json
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.analysis.fit import Question, fit, own_target  # noqa: E402
from vramscope.analysis.fit.answer import Target  # noqa: E402
from vramscope.commands._mcp_tools import Tools  # noqa: E402
from vramscope.errors import VramscopeError  # noqa: E402
from vramscope.model.prediction import Prediction  # noqa: E402
from vramscope.units import format_bytes  # noqa: E402

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

MIB = 1 << 20
TRAIN = """
import torch
weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    held = torch.zeros({mib} << 20, device="cuda", dtype=torch.uint8)
    loss = {loss}
    loss.backward()
    optimizer.step()
    {then}
"""
SUM = "weight.sum()"
CONVOLUTION = "torch.nn.functional.conv2d(weight.view(1, 1, 1024, 1024), torch.ones(1, 1, 3, 3).cuda()).sum()"
BRANCH = "extra = torch.zeros(300 << 20, device='cuda', dtype=torch.uint8) if loss.item() < 1 else None"
# Text of the program, capacity, whether it fits, certainty; the context of an H100 is taken to be 742 MiB.
PROGRAMS = {
    "fits": (TRAIN.format(mib=100, loss=SUM, then="pass"), None, True, "checked"),
    "out of memory": (TRAIN.format(mib=400, loss=SUM, then="pass"), "842MiB", False, "checked"),
    "one branch fits": (TRAIN.format(mib=100, loss=SUM, then=BRANCH), "992MiB", None, "estimate"),
    "no branch fits": (TRAIN.format(mib=400, loss=SUM, then=BRANCH), "842MiB", False, "checked"),
    "cannot tell": (TRAIN.format(mib=100, loss=CONVOLUTION, then="pass"), None, None, "cannot_tell"),
}


def _figures(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "run"}


@pytest.fixture(scope="module", params=list(PROGRAMS))
def answered(request: Any, tmp_path_factory: Any) -> tuple[Path, Prediction, dict[str, Any], Any]:
    """The folder of a program, the function's prediction, the object of the command, and what is expected."""
    folder = tmp_path_factory.mktemp("program")
    text, capacity, *expected = PROGRAMS[request.param]
    script = folder / "train.py"
    script.write_text(text)
    found = vramscope.predict(
        lambda: runpy.run_path(str(script), run_name="__main__"),
        capacity=capacity,
        directory=folder / "by-function",
    )
    options = [] if capacity is None else ["--capacity", capacity]
    command = [sys.executable, "-m", "vramscope", "predict", "--json", "--output", "by-command", *options]
    done = subprocess.run(
        [*command, "train.py"], capture_output=True, text=True, timeout=300, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, found, json.loads(done.stdout), expected


def test_the_function_says_what_the_command_prints(answered: Any):
    _, found, printed, (fits, certainty) = answered
    by_function = _figures(json.loads(json.dumps(found.to_json())))

    assert (found.fits, found.certainty) == (fits, certainty)
    for name in by_function:
        if name in ("out_of_memory", "reasons"):
            continue  # the frames of whoever started the script are not those of the command
        assert by_function[name] == printed[name], name


def test_the_recording_keeps_the_whole_answer(answered: Any):
    folder, found, printed, _ = answered
    kept = vramscope.load(folder / "by-command").recordings[0].prediction
    of_function = vramscope.load(folder / "by-function").recordings[0].prediction
    of_command = _figures(json.loads(json.dumps(kept.to_json())))

    assert of_command == {name: printed[name] for name in of_command}
    assert of_function.to_json() == found.to_json()
    assert of_function.sentence == found.sentence


def test_an_agent_gets_the_verdicts_of_the_command(tmp_path: Path):
    text, *_ = PROGRAMS["fits"]
    (tmp_path / "train.py").write_text(text)
    # On a thread of its own: another test's event loop may run on this one.
    with ThreadPoolExecutor(1) as pool:
        predicting = pool.submit(lambda: asyncio.run(Tools(tmp_path).predict("train.py", [], "4090")))
        answer = json.loads(predicting.result())
    found = vramscope.predict(lambda: runpy.run_path(str(tmp_path / "train.py")), card="4090")

    assert {card["card"]: card["fits"] for card in answer["cards"]} == {
        card.card: card.fits for card in found.cards
    }
    assert answer["peak_reserved_bytes"] == found.peak_reserved_bytes


def test_what_runs_out_of_memory_says_what_it_needs_without_a_limit():
    def program() -> None:
        torch.zeros(400 << 20, device="cuda", dtype=torch.uint8)

    found = vramscope.predict(program, capacity="842MiB")
    verdicts = {card.card: card.fits for card in found.cards}

    assert found.fits is False
    # Without it 400 MiB would seem to fit 842 MiB.
    assert found.sentence.endswith("400 MiB reserved; CUDA itself takes about 742 MiB of it")
    assert found.without_limit is not None
    assert found.without_limit.peak_allocated_bytes == found.need.allocated_bytes == 400 * MIB
    assert found.need.is_whole
    assert set(verdicts.values()) == {True}
    assert found.fits_on(found.capacity_bytes) is False
    assert found.fits_on(8 << 30) is True
    assert not list(found.run.parent.glob("*.tmp"))


def test_a_program_without_memory_on_the_card_has_no_prediction():
    with pytest.raises(VramscopeError, match="put nothing on the card"):
        vramscope.predict(lambda: torch.zeros(8))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: text.replace('"major": 1', '"major": 2'),
        lambda text: text.replace('"trace": "', '"trace": "x'),
        lambda text: text.replace('"certainty"', '"sureness"'),
        lambda _: "[]",
    ],
)
def test_an_answer_that_cannot_be_read_is_a_note_and_one_of_the_future_is_read(tmp_path: Path, damage: Any):
    found = vramscope.predict(lambda: torch.zeros(8, device="cuda"), directory=tmp_path / "run")
    (path,) = (tmp_path / "run").glob("*/prediction.json")
    whole = path.read_text()
    path.write_text(damage(whole))
    damaged = vramscope.load(tmp_path / "run").recordings[0]
    path.write_text(whole.replace('"certainty"', '"of_the_future": 1, "certainty"', 1))
    later = vramscope.load(tmp_path / "run").recordings[0]

    assert damaged.prediction is None
    assert "prediction.json" in " ".join(note.text for note in damaged.notes)
    assert later.prediction == replace(found, loaded=None)
    assert not any("prediction.json" in note.text for note in later.notes)


def test_fit_in_the_terminal_and_on_its_page_says_what_the_prediction_says(answered: Any):
    dashboard_data = pytest.importorskip("vramscope.dashboard.data")
    from vramscope.dashboard.address import Address
    from vramscope.dashboard.pages import fit as page
    from vramscope.dashboard.queries.settings_search import searches, verdict_so_far

    from vramscope.commands._fit_page import page as terminal_page

    folder, found, *_ = answered
    recording = vramscope.load(folder / "by-function").recordings[0]
    target = Target("a card of 8 GiB", 8 << 30)
    answer = fit(recording, Question(targets=(*own_target(recording), target)))
    data = dashboard_data.Data(folder)
    address = Address(run=next(key for key, path in data.runs.paths().items() if path.name == "by-function"))
    view = data.view(address)
    search = searches(data).of(view)
    assert search.wait(60)

    assert [each.verdict.fits for each in answer.placed] == [found.fits, found.fits_on(8 << 30)]
    assert found.needs in "".join(str(block) for block in terminal_page([answer], "run"))
    for card in found.cards:
        assert verdict_so_far(search.fit, card.capacity_bytes).fits == found.fits_on(card.capacity_bytes)
    printed = str(page.printed(data, search, address))
    assert {True: "It fits this device", False: "It does not fit", None: "is not known"}[
        found.fits
    ] in printed
    need = found.need
    if need.is_whole and need.doubt_bytes is not None:
        assert f"{format_bytes(need.reserved_bytes + need.doubt_bytes)} are reserved at most" in printed
    else:
        assert f"it needs at least {format_bytes(need.reserved_bytes)} reserved" in printed
