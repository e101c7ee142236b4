"""What the program knows by name is labelled at its block, and only that."""

import pytest
import torch
from torch import nn

from vramscope.capture.hooks.gradients import gradients_of
from vramscope.capture.labels import Labeler
from vramscope.model.marks import Category
from vramscope.model.trace import Action


@pytest.fixture
def labelled(recorded):
    """``labelled(train)`` gives category and name → bytes of the block labelled so."""

    def run(train):
        with recorded() as recording:
            kept = train()
        del kept
        blocks = recording.sink.initial.blocks
        sizes = dict(zip(blocks.address.tolist(), blocks.requested_size.tolist(), strict=True))
        found = {}
        labels = recording.sink.labels
        rows = list(zip(*(column.tolist() for _, column in labels.columns()), strict=True))
        trace = recording.sink.trace
        for instant, (action, address, size) in enumerate(
            zip(trace.action.tolist(), trace.address.tolist(), trace.size.tolist(), strict=True), start=1
        ):
            if action == Action.ALLOC:
                sizes[address] = size
            for event, at, category, _, name in rows:
                if event == instant and at in sizes:
                    found[Category(category), labels.names[name]] = sizes[at]
        return found

    return run


def adam_step():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(16, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_everything_of_a_step_has_its_name(labelled):
    found = labelled(adam_step)

    assert found[Category.PARAMETER, "0.weight"] == 4 * 8 * 4
    assert found[Category.BUFFER, "1.running_mean"] == 4 * 4
    assert found[Category.INPUT, "16 × 8"] == 16 * 8 * 4
    assert found[Category.GRADIENT, "gradient of 0.weight"] == 4 * 8 * 4
    assert found[Category.OPTIMIZER_STATE, "exp_avg of 0.weight"] == 4 * 8 * 4
    assert found[Category.OPTIMIZER_STATE, "step of 0.bias"] == 4


@pytest.mark.parametrize(("dtype", "n_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_label_says_how_large_the_numbers_are(recorded, dtype, n_bytes):
    with recorded() as recording:
        model = nn.Linear(8, 4, dtype=dtype)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(16, 8, dtype=dtype)).sum().backward()
        optimizer.step()

    labels = recording.sink.labels
    known = {(labels.names[row], n) for row, n in zip(labels.name, labels.element_bytes, strict=True)}
    assert {("weight", n_bytes), ("exp_avg of weight", n_bytes), ("step of weight", 4)} <= known


def test_parameters_without_a_module_are_known_from_their_optimizer(labelled):
    def train():
        weight = torch.ones(8, 8, requires_grad=True)
        optimizer = torch.optim.SGD([weight], momentum=0.9)
        (weight * 2).sum().backward()
        optimizer.step()
        return weight, optimizer

    found = labelled(train)

    assert found == {
        (Category.PARAMETER, ""): 256,
        (Category.GRADIENT, ""): 256,
        (Category.OPTIMIZER_STATE, "momentum_buffer"): 256,
    }


def test_what_a_module_made_is_no_input_of_the_next(labelled):
    def train():
        maker, critic = nn.Linear(4, 8), nn.Linear(8, 1)
        picture = maker(torch.ones(2, 4))
        return critic(picture.detach()), picture, maker, critic

    found = labelled(train)

    assert [size for (category, _), size in found.items() if category == Category.INPUT] == [2 * 4 * 4]
    assert found[Category.ACTIVATION, "output of a module, 2 × 8"] == 2 * 8 * 4


def test_inputs_by_keyword_and_in_containers(labelled):
    class Model(nn.Module):
        def forward(self, batch, mask):
            return batch["x"] * mask

    def train():
        return Model()({"x": torch.ones(3)}, mask=torch.ones(1, 3))

    found = labelled(train)

    assert found[Category.INPUT, "3"] == 12


def test_views_whose_base_was_modified_in_place_stop_no_recording(recorded):
    """FSDP1 with ``use_orig_params`` leaves such views, and torch raises when their graph is asked."""
    flat = nn.Parameter(torch.ones(8))
    flat.grad = torch.ones(8)
    first, second = torch.split(flat, 4)
    with torch.no_grad():
        first.add_(1)
    with pytest.raises(RuntimeError, match="modified inplace"):
        _ = second.is_leaf

    with recorded() as recording, torch.no_grad():  # its first failure is raised
        nn.Flatten(0)(second)
        (gradient,) = gradients_of([first, second, flat])

    assert gradient is flat.grad
    assert Category.INPUT not in recording.sink.labels.category


@pytest.mark.filterwarnings("error")
def test_results_in_place_of_parameters_are_not_asked_for_gradients(recorded):
    """The inner steps of meta-learning: torch warns where the ``.grad`` of a result is read."""
    layer = nn.Linear(4, 4)
    inner = {name: 2 * value for name, value in layer.named_parameters()}

    with recorded():
        torch.func.functional_call(layer, inner, torch.ones(1, 4)).sum().backward()

    assert layer.weight.grad is not None


def test_of_storages_that_are_gone_few_are_remembered_and_none_that_lives_is_labelled_again():
    named = []

    def add(storages, _category, names, _):
        named.extend(names)
        return [True] * len(storages)

    labeller, model = Labeler(add), nn.Linear(2, 2)
    labeller.module(model)
    for _ in range(12):
        # All at once, as a storage that is gone leaves its address to the next one.
        batches = [torch.ones(1) for _ in range(6_000)]
        labeller.inputs(batches)
    n_named = len(named)
    labeller.inputs(batches)
    labeller.module(model)

    assert named[:2] == ["weight", "bias"]
    assert len(named) == n_named == 2 + 12 * 6_000
    assert len(labeller._seen) <= 2 * (2 * 6_000 + 2)
