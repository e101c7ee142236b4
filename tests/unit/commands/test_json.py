"""What a command prints with ``--json`` is what its published schema says, of every kind of recording."""

import importlib
import json
import shutil
import sys
from argparse import ArgumentParser
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from vramscope import commands, loading, registry
from vramscope.cli import main
from vramscope.commands import Command
from vramscope.commands.predict import _largest_as_json
from vramscope.model.counters import Counters
from vramscope.model.device import Process
from vramscope.model.recording import Recording, Run
from vramscope.prediction.largest import LargestSize, SizeTrial
from vramscope.prediction.sizes import Size

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "sample_traces"
MIB = 1 << 20
SCHEMAS = sorted(path.stem for path in (ROOT / "docs" / "schemas").glob("*.json"))
MESSAGE = """Traceback (most recent call last):
  File "train.py", line 31, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 \
GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 22.44 GiB memory in use. Of \
the allocated memory 20.10 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated.
"""
PROGRAM = """
import torch
model = torch.nn.Linear(1024, 4096, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
for size in (8, 8, 8):
    optimizer.zero_grad()
    model(torch.randn(size, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
READING = {
    "report": ["report"],
    "report-at": ["report", "--at", "peak"],
    "report-where": ["report", "--where", "size>1MiB"],
    "leaks": ["leaks"],
    "info": ["info"],
    "ranks": ["ranks"],
    "fit": ["fit", "--capacity", "4090,t4", "--conf", "expandable_segments:True"],
    "check": ["check", "--max-peak", "10GiB", "--max-reserved", "1MiB", "--max-fragmentation", "10"],
}
"""The words of each command, by the name of its schema; ``leaks`` prints what ``report`` does."""
SCHEMA_OF = {"leaks": "report"}


def finished(_: Path) -> Path:
    return SAMPLES / "transformer-cuda"


def leaking(_: Path) -> Path:
    return SAMPLES / "gan-retain-graph"


def out_of_memory(_: Path) -> Path:
    return SAMPLES / "out-of-memory"


def damaged(folder: Path) -> Path:
    path = shutil.copytree(SAMPLES / "transformer", folder / "damaged")
    events = path / "rank0" / "events-0.arrows"
    data = bytearray(events.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20_000] = b"\xff" * 20_000
    events.write_bytes(data)
    return path


def snapshot(_: Path) -> Path:
    return ROOT / "tests" / "captures" / "pressure2.pickle.gz"


def log(folder: Path) -> Path:
    samples = json.loads((ROOT / "tests" / "unit" / "formats" / "log_samples.json").read_text())
    path = folder / "train.log"
    path.write_text("\n".join(next(each["text"] for each in samples if each["name"] == "ranks_log")))
    return path


def message(folder: Path) -> Path:
    path = folder / "message.txt"
    path.write_text(MESSAGE)
    return path


def printed(words: list[str]) -> Any:
    """What the command prints; None where it refuses the recording in words."""
    with redirect_stdout(StringIO()) as out:
        code = main([words[0], "--json", *words[1:]])
    if code not in (0, 3):
        assert out.getvalue() == ""
        return None
    return json.loads(out.getvalue())


@pytest.mark.parametrize("made", [finished, leaking, out_of_memory, damaged, snapshot, log, message])
def test_what_reading_commands_print_is_as_documented(made, tmp_path, documented, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    path = str(made(tmp_path))
    answers = {name: printed([words[0], path, *words[1:]]) for name, words in READING.items()}
    answers["diff"] = printed(["diff", path, str(SAMPLES / "transformer")])

    for name, answer in answers.items():
        if answer is not None:
            documented(SCHEMA_OF.get(name, name), answer)
    assert {name for name, answer in answers.items() if answer is None} <= {"ranks", "fit", "diff"}
    assert made in (damaged, log, message) or answers["fit"] is not None
    assert all(answers["report"]["recordings"][0][part] for part in ("end", "peak", "growth"))


def test_several_ranks_samples_and_pinned_memory_are_as_documented(monkeypatch, documented):
    (first,) = loading.load(SAMPLES / "transformer-cuda").recordings
    sampled = Counters.of(
        time_ns=[first.trace.time_ns[0], first.trace.time_ns[-1]],
        allocated_bytes=[5 * MIB, 3 * MIB],
        device_used_bytes=[900 * MIB, 800 * MIB],
        device_total_bytes=[1000 * MIB, 1000 * MIB],
    )
    recordings = (
        replace(first, pinned=first, counters=sampled),
        replace(first, process=Process(1, 3, "other")),
        Recording(process=Process(2, 3), counters=sampled),
    )
    monkeypatch.setattr(
        importlib.import_module("vramscope.loading"), "load", lambda _: Run("x", "x", recordings)
    )
    report = printed(["report", "x"])

    assert report["ranks"]["rows"]
    assert report["recordings"][0]["pinned_at_peak"]["live"]
    assert report["recordings"][0]["waterfall"]["end"]["bars"]
    documented("report", report)
    documented("info", printed(["info", "x"]))
    documented("check", printed(["check", "x", "--max-peak", "1GiB", "--against", "x"]))


def test_what_predict_prints_and_its_recording_are_as_documented(tmp_path, documented):
    torch = pytest.importorskip("torch")
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip(f"torch {torch.__version__} has no devices in Python")
    script, run = tmp_path / "train.py", str(tmp_path / "run")
    script.write_text(PROGRAM)
    # CUDA's context is 742 MiB: 58 MiB remain, and the program needs more.
    whole = printed(["predict", "--output", run, "--capacity", "800MiB", str(script)])

    assert whole["out_of_memory"]
    assert whole["without_limit"]
    documented("predict", whole)
    for name in ("report", "fit", "info"):
        documented(name, printed([name, run]))


def test_the_largest_size_and_the_machine_are_as_documented(documented):
    trials = SizeTrial(8, True, MIB), SizeTrial(16, False, 0), SizeTrial(12, None, 0, "it reads the size")
    answers = [(Size("n", 8, ()), LargestSize(trials)), (Size("m", 8, ()), LargestSize((), "stopped"))]

    documented("doctor", printed(["doctor"]))
    documented("predict-largest", _largest_as_json(answers, "T4", 16 << 30))


def test_every_command_with_json_has_a_schema_and_the_other_way_round():
    with_json = set()
    for name, command in registry.parts(commands, Command, refused=lambda *_: None).items():
        parser = ArgumentParser()
        command.arguments(parser)
        if "--json" in parser.format_help():
            with_json.add(SCHEMA_OF.get(name, name))

    assert {name.split("-")[0] for name in SCHEMAS} == with_json


def test_the_schemas_are_what_the_page_says_and_are_schemas():
    jsonschema = pytest.importorskip("jsonschema")
    sys.path.append(str(ROOT / "scripts"))
    import schemas

    made = schemas.schemas()
    on_disk = {name: json.loads((ROOT / "docs" / "schemas" / f"{name}.json").read_text()) for name in SCHEMAS}
    assert made == on_disk, "python scripts/schemas.py"
    for schema in made.values():
        jsonschema.Draft202012Validator.check_schema(schema)
