"""What would lower the peak: said from one recording, held against a run that does it."""

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.analysis.strategies import Strategy, strategies  # noqa: E402
from vramscope.errors import UsageError  # noqa: E402
from vramscope.model.marks import Category, Labels, Phase, Phases  # noqa: E402
from vramscope.model.recording import Recording  # noqa: E402
from vramscope.model.trace import Action, Trace  # noqa: E402

nn = torch.nn
MIB = 1 << 20


def attention() -> Any:
    layers = (nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2))
    return nn.Sequential(*layers)


def blocks() -> Any:
    parts = (nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4))
    return nn.Sequential(*parts)


MODELS = {
    "blocks": (blocks, (128,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), (256,)),
    "deep": (lambda: nn.Sequential(*(nn.Linear(128, 128) for _ in range(6))), (128,)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()), (3, 32, 32)),
    "attention": (attention, (32, 64)),
}


class Checkpointed(nn.Sequential):
    """Each of its parts is run again in backward."""

    def forward(self, x: Any) -> Any:
        for part in self:
            x = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
        return x


def trained(
    path, name: str, *, fused: bool = False, micro: int = 1, batch: int = 64, how: str = ""
) -> Recording:
    """A recording of real training on the simulated device."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = Checkpointed(*make()) if how == "checkpointed" else make()
    options = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    gc.collect()
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            for _ in range(micro):
                loss = model(torch.randn(batch // micro, *shape)).square().mean() / micro
                loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=how != "kept")
    return vramscope.load(path).recordings[0]


def peak_of(recording: Recording) -> int:
    return int(recording.peak().allocated.n_bytes)


def named(found: Any, start: str) -> Strategy:
    (each,) = (each for each in found.advised if each.name.startswith(start))
    return each


@pytest.mark.parametrize("name", ["mlp", "deep"])
def test_a_fused_optimizer_saves_what_was_said(tmp_path, name):
    # A small batch, so that the peak is in the optimizer's step.
    before = trained(tmp_path / "before", name, batch=8)
    after = trained(tmp_path / "after", name, fused=True, batch=8)

    said = named(strategies(before), "fused optimizer")

    saved = peak_of(before) - peak_of(after)
    assert said.saved_bytes == pytest.approx(saved, rel=0.1)
    assert said.peak_bytes == peak_of(before) - said.saved_bytes


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_accumulation_over_two_micro_batches_saves_what_was_said(tmp_path, name):
    before, after = trained(tmp_path / "before", name), trained(tmp_path / "after", name, micro=2)

    said = named(strategies(before), "2 micro-batches")

    assert said.saved_bytes == pytest.approx(peak_of(before) - peak_of(after), rel=0.1)


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_what_does_not_touch_the_peak_is_not_advised(tmp_path, name):
    before = trained(tmp_path / "before", name)
    after = trained(tmp_path / "after", name, fused=True)

    assert peak_of(after) == peak_of(before)
    assert "fused optimizer" in strategies(before).without_effect


@pytest.mark.parametrize(("name", "batch"), [("blocks", 512), ("attention", 64)])
def test_checkpointing_saves_what_was_said(tmp_path, name, batch):
    before = trained(tmp_path / "before", name, batch=batch)
    after = trained(tmp_path / "after", name, batch=batch, how="checkpointed")

    said = named(strategies(before), "activation checkpointing")

    assert said.saved_bytes == pytest.approx(peak_of(before) - peak_of(after), rel=0.1)
    assert "checkpoint" not in " ".join(each.name for each in strategies(after).advised)


def test_gradients_that_stay_are_told_to_go(tmp_path):
    before = trained(tmp_path / "before", "blocks", batch=512, how="kept")
    after = trained(tmp_path / "after", "blocks", batch=512)

    said = named(strategies(before), "gradients set to None")

    assert said.saved_bytes == pytest.approx(peak_of(before) - peak_of(after), rel=0.1)
    assert "gradients set to None" not in [each.name for each in strategies(after).advised]


def test_a_recording_without_torchs_frames_gets_no_advice_on_precision():
    found = strategies(by_hand())

    assert not [each for each in found.advised if "precision" in each.name]


# ------------------------------------------------------------------------------- counted by hand

PARAMETER, GRADIENT, STATE, ACTIVATION, TEMPORARY = 8 * MIB, 8 * MIB, 16 * MIB, 4 * MIB, 2 * MIB


def by_hand(activation: int = ACTIVATION) -> Recording:
    """8 of parameters, 16 of state, 4 of activations, 8 of gradients, 2 within the optimizer, in MiB."""
    rows = [
        (Action.ALLOC, 1, PARAMETER, Category.PARAMETER),
        (Action.ALLOC, 2, STATE, Category.OPTIMIZER_STATE),
        (Action.ALLOC, 3, activation, Category.ACTIVATION),
        (Action.ALLOC, 4, GRADIENT, Category.GRADIENT),
        (Action.FREE_REQUESTED, 3, activation, None),
        (Action.ALLOC, 5, TEMPORARY, Category.TEMPORARY),
        (Action.FREE_REQUESTED, 5, TEMPORARY, None),
    ]
    action, number, size, category = zip(*rows, strict=True)
    address = [each << 32 for each in number]
    known = [(i, address[i], category[i]) for i in range(len(rows)) if category[i] is not None]
    event, where, what = zip(*known, strict=True)
    return Recording(
        trace=Trace.of(action=action, address=address, size=size, block_size=size),
        labels=Labels.of(event=[each + 1 for each in event], address=where, category=what),
        phases=Phases.of(
            phase=[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER], start_event=[2, 3, 5], end_event=[3, 5, 7]
        ),
    )


def test_sharding_is_the_closed_form():
    found = strategies(by_hand(), n_ranks=4)

    # The peak is in backward: 8 + 16 + 4 + 8.
    assert (found.peak_bytes, found.phase) == (36 * MIB, Phase.BACKWARD)
    assert named(found, "ZeRO-1").saved_bytes == STATE * 3 // 4
    assert named(found, "ZeRO-2").saved_bytes == (STATE + GRADIENT) * 3 // 4
    # And the only parameter is gathered.
    assert named(found, "ZeRO-3").saved_bytes == (STATE + GRADIENT + PARAMETER) * 3 // 4 - PARAMETER


def test_a_state_in_8_bits_is_a_byte_and_its_share_of_a_scale():
    said = named(strategies(by_hand()), "optimizer state in 8 bits")

    n_elements = STATE // 4
    assert said.saved_bytes == STATE - (n_elements + n_elements // 256 * 4)


def test_a_small_saving_is_no_advice():
    found = strategies(by_hand(activation=3000 * MIB))

    # Less than a hundredth of the peak each.
    assert {"optimizer state in 8 bits", "optimizer on the CPU"} <= set(found.without_effect)
    assert [each.name for each in found.advised] == ["2 micro-batches with accumulated gradients"]


def test_a_recording_that_knows_no_categories_gets_no_advice():
    bare = Recording(trace=by_hand().trace)
    found = strategies(bare)

    assert found.advised == ()
    assert found.unknown_bytes == found.peak_bytes > 0


def test_one_gpu_cannot_shard():
    with pytest.raises(UsageError):
        strategies(by_hand(), n_ranks=1)
