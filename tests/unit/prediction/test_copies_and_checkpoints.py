"""Copies of a model, and what the program loads of what it saved, cost what they cost on a card."""

import gc
import weakref

import pytest
import torch

from vramscope import predict

NET = """
import copy, io, torch
from torch import nn
def make():
    layers = [each for _ in range(4) for each in (nn.Linear(600, 600), nn.LayerNorm(600), nn.ReLU())]
    return nn.Sequential(*layers).cuda()
net = make()
"""
FORWARD = "with torch.no_grad():\n    other(torch.randn(2000, 600, device='cuda'))\n"


def _peak(text: str) -> tuple[int, int]:
    found = predict(lambda: exec(compile(text, "<program>", "exec"), {}), steps=None)
    assert found.certainty == "checked", found.reasons
    return found.peak_allocated_bytes, found.peak_reserved_bytes


def test_a_copied_model_costs_what_another_one_costs():
    copied = _peak(f"{NET}other = copy.deepcopy(net)\n{FORWARD}")

    assert copied == _peak(f"{NET}other = make()\n{FORWARD}")


def test_the_compiler_s_import_keeps_no_frame_of_the_program():
    kept = []

    def program():
        torch.zeros(9, device="cuda")

        def inner():
            given = torch.randn(20, 600, device="cuda")
            kept.append(weakref.ref(given))
            assert torch._dynamo.is_compiling is not None  # imports it

        gc.disable()
        inner()
        kept.append(kept[0]() is None)
        gc.enable()

    predict(program, steps=None)

    assert kept[1]


def test_counters_of_a_copied_model_count():
    counts = []

    def program():
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).cuda()
        averaged = torch.optim.swa_utils.AveragedModel(net)
        torch.optim.swa_utils.update_bn([torch.randn(4, 8)] * 3, averaged, device="cuda")
        counts.append(int(averaged.module[1].num_batches_tracked))

    predict(program, steps=None)

    assert counts == [3]


@pytest.mark.parametrize("place", ["io.BytesIO()", "directory + '/last.pt'"])
def test_what_was_saved_is_loaded_as_a_copy(place: str, tmp_path):
    begin = f"{NET}directory = {str(tmp_path)!r}\nplace = {place}\n"
    begin += "saved = {'net': net.state_dict(), 'step': 7}\n"
    save = "torch.save(saved, place)\nif not isinstance(place, str): place.seek(0)\n"
    hold = "{name: each.clone() for name, each in net.state_dict().items()}"

    on_card = _peak(
        f"{begin}{save}found = torch.load(place, map_location='cuda')\nassert found['step'] == 7\n"
    )
    as_it_was = _peak(f"{begin}{save}found = torch.load(place)\nnet.load_state_dict(found['net'])\n")
    on_host = _peak(
        f"{begin}{save}found = torch.load(place, map_location='cpu')\nnet.load_state_dict(found['net'])\n"
    )

    assert on_card == as_it_was == _peak(f"{begin}found = {hold}\n")
    assert on_host == _peak(begin)
    assert not list(tmp_path.iterdir())


def test_a_saved_model_is_loaded_as_one(tmp_path):
    path = tmp_path / "net.pt"
    text = f"{NET}with open({str(path)!r}, 'wb') as file:\n    torch.save(net, file)\n"
    load = f"with open({str(path)!r}, 'rb') as file:\n    other = torch.load(file, weights_only=False)\n"

    loaded = _peak(f"{text}{load}assert all(p.requires_grad for p in other.parameters())\n{FORWARD}")

    assert loaded == _peak(f"{NET}other = make()\n{FORWARD}")
    assert not path.exists()
