"""What can be recorded here, and why not: of other machines, and on a device of the stand-in."""

import json
import os

import pytest

from vramscope import cli
from vramscope.capture.torch_versions import machine
from vramscope.capture.torch_versions.machine import Driver, Gpu, Torch
from vramscope.commands import doctor
from vramscope.errors import CaptureError

TORCH = Torch("2.13.0+cu130", "CUDA 13.0", 1, "native", "", is_checked=True, obstacle="")


def report(monkeypatch, capsys, torch=TORCH, driver=None, around=()):
    """The answers in JSON on a machine with this torch and driver, by their first word."""

    def installed():
        if isinstance(torch, Exception):
            raise torch
        return torch

    monkeypatch.setattr(machine, "installed_torch", installed)
    monkeypatch.setattr(machine, "driver", lambda: driver or Driver("580.1", [Gpu("H100", 80, 1, False)]))
    monkeypatch.setattr(machine, "surroundings", lambda: around)
    monkeypatch.setattr(doctor, "_version_of", lambda package: None if package == torch else "1.0")
    assert cli.main(["doctor", "--json"]) == 0
    return {answer["what"]: answer for answer in json.loads(capsys.readouterr().out)["can"]}


@pytest.mark.parametrize(
    ("changed", "state", "why"),
    [
        ({}, "yes", "as tested with torch 2.13.0"),
        ({"version": "2.12.1", "is_checked": False}, "yes", "torch 2.12.1 is not among the tested versions"),
        ({"built_for": "ROCm 6.4"}, "yes", "ROCm 6.4 was never tried"),
        ({"backend": "cudaMallocAsync"}, "partly", "cudaMallocAsync keeps no history"),
        ({"obstacle": "_cuda_memorySnapshot is missing"}, "partly", "_cuda_memorySnapshot is missing"),
        ({"devices": 0}, "no", "finds no device"),
        ({"built_for": "", "devices": 0}, "no", "is built without CUDA"),
    ],
)
def test_a_gpu_is_recorded_as_far_as_its_torch_allows(monkeypatch, capsys, changed, state, why):
    fields = {name: getattr(TORCH, name) for name in TORCH.__slots__} | changed
    answer = report(monkeypatch, capsys, Torch(**fields))["record on a GPU"]

    assert answer["state"] == state
    assert why in answer["why"]
    assert (answer["do"] == "") == (state == "yes")


@pytest.mark.parametrize(
    ("driver", "around", "state", "why"),
    [
        (Driver("580.1"), (), "yes", "driver 580.1"),
        (Driver(error="Insufficient Permissions"), (), "no", "Insufficient Permissions"),
        (Driver("580.1"), ("container",), "partly", "a container may hide"),
        (Driver("580.1"), ("WSL",), "partly", "WSL lists processes without their memory"),
        (Driver("580.1", [Gpu("A100", 40, 1, True)]), (), "partly", "MIG"),
    ],
)
def test_the_driver_counts_as_far_as_it_is_asked(monkeypatch, capsys, driver, around, state, why):
    answer = report(monkeypatch, capsys, driver=driver, around=around)["count other processes (NVML)"]

    assert (answer["state"], why in answer["why"]) == (state, True)


def test_without_torch_it_reads_and_says_what_to_install(monkeypatch, capsys):
    answers = report(monkeypatch, capsys, CaptureError("PyTorch cannot be imported: libcudart.so.13"))

    assert answers["record without a GPU"]["why"] == "PyTorch cannot be imported: libcudart.so.13"
    assert answers["predict what a script needs"]["do"].startswith("pip install torch")
    assert answers["read recordings and snapshots"]["state"] == "yes"


def test_a_dry_run_needs_a_torch_that_has_it(monkeypatch, capsys):
    fields = {name: getattr(TORCH, name) for name in TORCH.__slots__} | {"version": "2.9.1+cu128"}

    assert report(monkeypatch, capsys, Torch(**fields))["predict what a script needs"]["state"] == "no"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_yours_is_named(monkeypatch, capsys, tmp_path):
    tmp_path.chmod(0o500)
    monkeypatch.chdir(tmp_path)

    assert report(monkeypatch, capsys)["write recordings here"]["state"] == "no"


def test_the_page_says_every_answer_and_what_helps(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["can"]
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()

    for answer in answers:
        assert f"{answer['state']:8}{answer['what']}: {answer['why']}" in lines
        assert not answer["do"] or f"        {answer['do']}" in lines


@pytest.mark.standin
@pytest.mark.parametrize(
    ("configuration", "state"),
    [("", "yes"), ("backend:cudaMallocAsync", "partly")],
)
def test_on_a_device_it_says_what_recording_then_does(run_standin, configuration, state):
    answer = run_standin(
        """
        import io, json, sys
        from contextlib import redirect_stdout
        from vramscope import cli

        with redirect_stdout(io.StringIO()) as printed:
            cli.main(["doctor", "--json"])
        answer = json.loads(printed.getvalue())
        """,
        PYTORCH_CUDA_ALLOC_CONF=configuration,
    )
    gpu = answer["can"][0]

    assert (gpu["what"], gpu["state"]) == ("record on a GPU", state)
    assert answer["torch"]["configuration"] == configuration
    assert answer["torch"]["devices"] == len(answer["driver"]["gpus"]) == 1
