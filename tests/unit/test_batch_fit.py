"""What a batch of another size would need: foreseen from small batches, held against a run of that size."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.analysis.batch_fit import batch_fit  # noqa: E402
from vramscope.model.marks import Phase, Phases, Steps  # noqa: E402
from vramscope.model.recording import Recording  # noqa: E402
from vramscope.model.trace import Action, Trace  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
MIB = 1 << 20


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 64)
        layers = (nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(64, 500)

    def forward(self, words: Any) -> Any:
        return self.head(self.layers(self.words(words))).flatten(0, 1)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 32 * 32, 10),
    )


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), (256,)),
    "convolutions": (convolutions, (3, 32, 32)),
    "transformer": (Words, None),
    "lstm": (lambda: nn.LSTM(64, 128, 2, batch_first=True), (32, 64)),
    "checkpointed": (Checkpointed, (256,)),
}


def trained(path, name: str, batches: list[int]) -> Recording:
    """A recording of real training on the simulated device."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()  # what earlier tests left would be part of what is there
    with vramscope.record(path, device="simulated", quiet=True):
        for batch in batches:
            x = torch.randint(500, (batch, 32)) if shape is None else torch.randn(batch, *shape)
            out = model(x)
            loss = (out[0] if isinstance(out, tuple) else out).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    del x, out, loss
    gc.collect()
    return vramscope.load(path).recordings[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_twice_as_large_as_any_seen_needs_what_was_foreseen(tmp_path, name):
    sizes = [16, 16, 32, 32, 48, 48]
    fit = batch_fit(trained(tmp_path / "small", name, sizes), sizes=[sizes])
    large = trained(tmp_path / "large", name, [96] * 4)

    truth = int(large.step_peaks().per_step.allocated_bytes[2:].max())
    estimate = fit.at(96)
    assert fit.model is not None
    assert estimate.likely_bytes == pytest.approx(truth, rel=0.01)
    assert estimate.low_bytes <= truth <= estimate.high_bytes
    assert sum(estimate.categories.values()) == estimate.likely_bytes
    assert fit.fitting(truth + truth // 100 + MIB).size >= 95
    assert fit.fitting(truth - truth // 50).size < 96


def test_the_input_bytes_serve_as_size_where_none_is_given(tmp_path):
    recording = trained(tmp_path / "run", "mlp", [16, 16, 16, 32, 32, 32])

    fit = batch_fit(recording)

    assert fit.sizes == (16 * 256 * 4, 32 * 256 * 4)
    assert fit.at(32 * 256 * 4).likely_bytes == recording.step_peaks().per_step.allocated_bytes[5]
    assert [fit.named(size) for size in fit.sizes] == ["16 × 256 (seen)", "32 × 256 (seen)"]
    # Rounded down, as the size may be the largest that fits: 1.519 times 32 are 48.6.
    assert fit.named(int(32 * 256 * 4 * 1.519)) == "48 × 256"
    assert replace(fit, shapes=("8 × 64", "8 × 128")).named(2 * 32 * 256 * 4) == "8 × 256"
    # Where two sides differ, nothing says which of them grows.
    assert replace(fit, shapes=("8 × 64", "4 × 256")).named(2 * 32 * 256 * 4) == "2 times 4 × 256"
    assert replace(fit, shapes=("", "")).named(2 * 32 * 256 * 4) == "2 times 32.0 KiB of input"


def test_two_runs_of_one_size_each_make_a_line(tmp_path):
    runs = [trained(tmp_path / str(size), "mlp", [size] * 4) for size in (16, 32)]

    fit = batch_fit(runs[0], others=runs[1:], sizes=[[16], [32]])

    assert fit.sizes == (16, 32)
    assert fit.at(64).likely_bytes > fit.at(32).likely_bytes > fit.at(16).likely_bytes
    assert fit.largest == 64


# ------------------------------------------------------------------------------- counted by hand


def by_hand(sizes: list[int], weight: int = MIB) -> Recording:
    """A weight; then steps that hold the given bytes, and half of that again in backward."""
    rows, steps, phases = [(Action.ALLOC, 0, weight)], [], []
    for number, size in enumerate(sizes):
        start = len(rows)
        rows += [
            (Action.ALLOC, 1 << 30, size),
            (Action.ALLOC, 1 << 31, size // 2),
            (Action.FREE_REQUESTED, 1 << 31, size // 2),
            (Action.FREE_COMPLETED, 1 << 31, size // 2),
            (Action.FREE_REQUESTED, 1 << 30, size),
            (Action.FREE_COMPLETED, 1 << 30, size),
        ]
        phases += [(Phase.FORWARD, number, start, start + 1), (Phase.BACKWARD, number, start + 1, start + 6)]
        steps.append((number, start, start + 6))
    action, address, size = zip(*rows, strict=True)
    phase, step, first, last = zip(*phases, strict=True)
    index, start, end = zip(*steps, strict=True)
    return Recording(
        trace=Trace.of(action=action, address=address, size=size, block_size=size),
        steps=Steps.of(index=index, start_event=start, end_event=end),
        phases=Phases.of(phase=phase, step=step, start_event=first, end_event=last),
    )


def test_a_step_holds_its_weight_and_half_as_much_again_as_its_batch():
    fit = batch_fit(by_hand([2 * MIB] * 3 + [4 * MIB] * 3), sizes=[[2, 2, 2, 4, 4, 4]])

    estimate = fit.at(8)
    assert (estimate.likely_bytes, estimate.phase) == (MIB + 8 * MIB + 4 * MIB, Phase.BACKWARD)
    assert (fit.error_bytes, fit.problem) == (0, "")


def test_no_further_than_the_data_carry():
    two = batch_fit(by_hand([2 * MIB] * 2 + [4 * MIB] * 2), sizes=[[2, 2, 4, 4]])
    three = batch_fit(by_hand([2 * MIB] * 2 + [4 * MIB] * 2 + [6 * MIB] * 2), sizes=[[2, 2, 4, 4, 6, 6]])

    assert (two.smallest, two.largest, three.largest) == (1, 8, 24)
    assert two.at(9) is None
    assert two.at(0) is None
    assert two.fitting(1 << 50) == (8, True)
    assert two.fitting(1) == (0, False)


def test_steps_of_one_size_say_nothing_and_why():
    fit = batch_fit(by_hand([2 * MIB] * 4), sizes=[[8]])

    assert "the 3 steps compared are of one size" in fit.problem
    assert fit.at(8) is None
    assert fit.fitting(1 << 40) is None


@pytest.mark.parametrize(
    ("n_steps", "words"),
    [
        (1, "the recording has 1 step, and it takes two"),
        (4, "nothing says how large the batches of two steps"),
    ],
)
def test_without_sizes_it_is_said_whether_steps_or_sizes_are_missing(n_steps, words):
    assert words in batch_fit(by_hand([2 * MIB] * n_steps)).problem


def test_a_single_step_is_counted_as_one():
    assert "the step compared is of one size" in batch_fit(by_hand([2 * MIB] * 2), sizes=[[8]]).problem


def test_a_square_is_reported_not_to_be_a_line():
    sizes = [1, 1, 2, 2, 3, 3, 4, 4]
    fit = batch_fit(by_hand([size * size * MIB for size in sizes]), sizes=[sizes])

    assert "no straight line" in fit.problem


def test_steps_that_differ_in_what_they_do_are_not_replayed_and_why():
    recording = by_hand([2 * MIB, 2 * MIB, 4 * MIB, 4 * MIB])
    # In the large steps the small block goes before anything else does: another order of things.
    action = recording.trace.action.copy()
    address, size = recording.trace.address.copy(), recording.trace.size.copy()
    for start in (13, 19):
        order = np.array([start, start + 1, start + 4, start + 5, start + 2, start + 3])
        for column in (action, address, size):
            column[start : start + 6] = column[order]
    trace = Trace.of(action=action, address=address, size=size, block_size=size)
    changed = Recording(trace=trace, steps=recording.steps, phases=recording.phases)

    fit = batch_fit(changed, sizes=[[2, 2, 4, 4]])

    assert fit.at(8) is None
    assert "the 3 steps compared differ in what they do" in fit.problem


def test_what_the_first_step_alone_made_does_not_count_its_blocks_anew():
    """Each step keeps its result until the next one begins; the first makes a workspace before it."""
    rows, steps = [(Action.ALLOC, 3 << 30, MIB)], []
    for number, batch in enumerate([2, 2, 4, 4]):
        start, result = len(rows), (1 << 30) + (number << 20)
        rows += [(Action.ALLOC, 5 << 30, 8 * MIB)] if number == 0 else []
        rows += [(Action.ALLOC, result, batch * MIB)]
        if number:
            older = result - (1 << 20), rows[steps[-1][2] - 1][2]
            rows += [(Action.FREE_REQUESTED, *older), (Action.FREE_COMPLETED, *older)]
            rows += [rows.pop(len(rows) - 3)]
        steps.append((number, start, len(rows)))
    action, address, size = zip(*rows, strict=True)
    index, start, end = zip(*steps, strict=True)
    phases = Phases.of(phase=[Phase.FORWARD] * 4, step=index, start_event=start, end_event=end)
    trace = Trace.of(action=action, address=address, size=size, block_size=size)
    recording = Recording(
        trace=trace, steps=Steps.of(index=index, start_event=start, end_event=end), phases=phases
    )

    fit = batch_fit(recording, sizes=[[2, 2, 4, 4]])

    assert fit.at(8).likely_bytes == (1 + 8 + 8) * MIB


# ------------------------------------------------------------------- what two sizes leave open


def with_squares(sizes: list[int], table: int = 0) -> Recording:
    """Each step holds a square of its size in KiB besides, as attention of longer sequences does.

    *table*: KiB of another request, which is fixed in part.
    """
    rows, steps = [(Action.ALLOC, 0, MIB)], []
    for number, size in enumerate(sizes):
        start = len(rows)
        made = [(1 << 30, size << 10), (1 << 31, size * size << 10)]
        made += [(1 << 32, (table + size) << 10)] if table else []
        rows += [(Action.ALLOC, *each) for each in made]
        rows += [
            (action, *each) for each in made for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        ]
        steps.append((number, start, len(rows)))
    action, address, size = zip(*rows, strict=True)
    index, start, end = zip(*steps, strict=True)
    return Recording(
        trace=Trace.of(action=action, address=address, size=size, block_size=size),
        steps=Steps.of(index=index, start_event=start, end_event=end),
        phases=Phases.of(phase=[Phase.FORWARD] * len(sizes), step=index, start_event=start, end_event=end),
    )


def test_what_grows_with_the_square_of_a_length_is_foreseen_from_two_of_them():
    fit = batch_fit(with_squares([128, 128, 256, 256]), sizes=[[128, 128, 256, 256]])
    truth = MIB + (512 << 10) + (512 * 512 << 10)

    estimate = fit.at(512)

    assert estimate.low_bytes <= truth <= estimate.high_bytes
    assert estimate.likely_bytes == pytest.approx(truth, rel=0.01)
    assert "square" in fit.problem


def test_what_may_be_a_line_or_a_square_has_an_interval_that_holds_both():
    # 64 KiB and the size: 192 and 320 lie on that line, and on a square above 149 KiB.
    fit = batch_fit(with_squares([128, 128, 256, 256], table=64 << 10), sizes=[[128, 128, 256, 256]])
    exact = MIB + (512 << 10) + (512 * 512 << 10)
    square = (320 - 192) / (256**2 - 128**2)

    estimate = fit.at(512)

    assert estimate.low_bytes <= exact + ((64 << 10) + 512 << 10) <= estimate.high_bytes
    assert estimate.high_bytes >= exact + (64 << 20) + ((320 + square * (512**2 - 256**2)) * 1024)


def test_the_peak_of_an_evaluation_stays_whatever_the_batch_of_training():
    recording = by_hand([2 * MIB] * 2 + [4 * MIB] * 2)
    trace = recording.trace
    n = len(trace)
    # After the last step an evaluation holds 20 MiB.
    more = Trace.of(
        action=[Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED],
        address=[1 << 33] * 3,
        size=[20 * MIB] * 3,
        block_size=[20 * MIB] * 3,
    )
    joined = Trace.of(**{name: np.append(column, getattr(more, name)) for name, column in trace.columns()})
    phases = dict(recording.phases.columns())
    phases["phase"] = np.append(phases["phase"], Phase.EVAL)
    phases["step"] = np.append(phases["step"], -1)
    phases["start_event"] = np.append(phases["start_event"], n)
    phases["end_event"] = np.append(phases["end_event"], n + 3)
    evaluated = Recording(
        trace=joined,
        steps=recording.steps,
        phases=Phases.of(**{name: phases[name] for name in ("phase", "step", "start_event", "end_event")}),
    )

    fit = batch_fit(evaluated, sizes=[[2, 2, 4, 4]])

    assert (fit.at(4).likely_bytes, fit.at(4).phase) == (MIB + 20 * MIB, Phase.EVAL)
    assert fit.at(8).likely_bytes == MIB + 20 * MIB
    assert fit.at(8).low_bytes == MIB + 20 * MIB


def test_a_row_says_whether_it_fits_or_that_nobody_can_tell():
    fit = batch_fit(by_hand([2 * MIB] * 3 + [4 * MIB] * 3), sizes=[[2, 2, 2, 4, 4, 4]])
    (_, estimate) = fit.rows()[-1]

    assert estimate.fits(estimate.low_bytes - 1) is False
    assert estimate.fits(max(estimate.high_bytes, estimate.reserved_bytes)) is True
    assert estimate.fits(estimate.likely_bytes) is None
