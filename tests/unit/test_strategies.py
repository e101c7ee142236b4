"""What would lower the peak: estimated from one recording, compared with a run that does it."""

import gc
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


import vramscope  # noqa: E402
from vramscope.analysis.strategies import Strategies, Strategy, Undecided, strategies  # noqa: E402
from vramscope.errors import UsageError  # noqa: E402
from vramscope.model.marks import Category, Labels, MarkKind, Phase, Phases  # noqa: E402
from vramscope.model.recording import Recording  # noqa: E402
from vramscope.model.stacks import StackBuilder  # noqa: E402
from vramscope.model.trace import Action, Trace  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_tensors_only")

nn = torch.nn
MIB = 1 << 20


def blocks() -> Any:
    parts = (nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4))
    return nn.Sequential(*parts)


class Forces(nn.Module):
    """The gradient of an energy by its input, so that backward passes the energy twice."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(
            nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 1)
        )

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


MODELS = {
    "forces": (Forces, (32,)),
    "blocks": (blocks, (128,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), (64,)),
    "deep": (lambda: nn.Sequential(*(nn.Linear(128, 128) for _ in range(6))), (128,)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()), (3, 32, 32)),
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


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """``plain("attention", 64)``: that model trained as it is; once for all tests."""

    @cache
    def recording(name: str, batch: int) -> Recording:
        return trained(tmp_path_factory.mktemp("plain"), name, batch=batch)

    return recording


def tried(found: Any) -> list[str]:
    return [each.name for each in found.advised] + list(found.without_effect)


def test_a_fused_optimizer_saves_what_was_predicted(tmp_path):
    # A small batch, so that the peak is in the optimizer's step.
    before = trained(tmp_path / "before", "deep", batch=8)
    after = trained(tmp_path / "after", "deep", fused=True, batch=8)

    said = named(strategies(before), "fused optimizer")

    saved = peak_of(before) - peak_of(after)
    assert said.saved_bytes == pytest.approx(saved, rel=0.1)
    assert said.peak_bytes == peak_of(before) - said.saved_bytes
    assert "fused optimizer" not in tried(strategies(after))


def test_accumulation_over_two_micro_batches_saves_what_was_predicted(tmp_path, plain):
    before, after = plain("convolutions", 64), trained(tmp_path / "after", "convolutions", micro=2)

    said = named(strategies(before), "2 micro-batches")

    assert said.saved_bytes == pytest.approx(peak_of(before) - peak_of(after), rel=0.1)
    assert not [name for name in tried(strategies(after)) if "micro-batches" in name]


def test_what_does_not_touch_the_peak_is_not_advised(tmp_path, plain):
    before = plain("convolutions", 64)
    after = trained(tmp_path / "after", "convolutions", fused=True)

    assert peak_of(after) == peak_of(before)
    assert "fused optimizer" in strategies(before).without_effect


def test_checkpointing_saves_what_was_predicted(tmp_path, plain):
    before = plain("blocks", 512)
    after = trained(tmp_path / "after", "blocks", batch=512, how="checkpointed")

    said = named(strategies(before), "activation checkpointing")

    assert said.saved_bytes == pytest.approx(peak_of(before) - peak_of(after), rel=0.1)
    assert "checkpoint" not in " ".join(each.name for each in strategies(after).advised)


def test_retained_gradients_are_advised_to_be_cleared(tmp_path, plain):
    before = trained(tmp_path / "before", "blocks", batch=512, how="kept")
    after = plain("blocks", 512)

    said = named(strategies(before), "gradients set to None")

    assert said.saved_bytes == pytest.approx(peak_of(before) - peak_of(after), rel=0.1)
    assert "gradients set to None" not in [each.name for each in strategies(after).advised]


@pytest.mark.usefixtures("one_process")
def test_views_of_ddps_buckets_save_what_was_predicted(tmp_path):
    before = trained_by_ddp(tmp_path / "before", gradient_as_bucket_view=False)
    after = trained_by_ddp(tmp_path / "after", gradient_as_bucket_view=True)

    said = named(strategies(before), "gradients as views")

    assert said.saved_bytes == pytest.approx(peak_of(before) - peak_of(after), rel=0.1)
    assert not [name for name in tried(strategies(after)) if "buckets" in name]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("is_view", [False, True])
def test_gradients_that_ddps_buckets_copy_are_reported(tmp_path, is_view):
    recording = trained_by_ddp(tmp_path / "run", gradient_as_bucket_view=is_view)

    found = recording.gradient_storage()

    assert [each.kind for each in found] == ["gradient_copies"] * (not is_view)
    # Six layers of 256 × 256 weights and 256 biases, four bytes each.
    assert all(each.n_bytes == 6 * (256 * 256 + 256) * 4 for each in found)
    assert all(each.severity == "info" for each in found)


@pytest.mark.usefixtures("one_process")
def test_looking_for_unused_parameters_costs_no_memory_that_advice_could_save(tmp_path):
    without = trained_by_ddp(tmp_path / "without", find_unused_parameters=False)
    looking = trained_by_ddp(tmp_path / "looking", find_unused_parameters=True)

    assert peak_of(looking) - peak_of(without) <= 4096
    assert "find_unused" not in " ".join(each.how for each in strategies(looking).advised)


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def trained_by_ddp(path, **options) -> Recording:
    """DistributedDataParallel as it is, with its reducer and buckets, in the only process there is."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    shared = nn.parallel.DistributedDataParallel(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    gc.collect()
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            shared(torch.randn(8, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return vramscope.load(path).recordings[0]


def test_a_recording_without_torchs_frames_gets_no_advice_on_precision():
    found = strategies(by_hand())

    assert not [each for each in found.advised if "precision" in each.name]


# ------------------------------------------------------------------------------- counted by hand

PARAMETER, GRADIENT, STATE, ACTIVATION, TEMPORARY = 8 * MIB, 8 * MIB, 16 * MIB, 4 * MIB, 2 * MIB


LINEAR = "/x/torch/nn/modules/linear.py"


def by_hand(activation: int = ACTIVATION, n_workspaces: int = 0, made_in: str = LINEAR) -> Recording:
    """8 of parameters, 16 of state, 4 of activations, 8 of gradients, 2 within the optimizer, in MiB.

    Workspaces of cuBLAS, 32 MiB each, come first. The activations are those of a line in the file *made_in*.
    """
    rows: list[tuple[Action, int, int, Category | None]] = [
        (Action.ALLOC, 6 + i, 32 * MIB, Category.WORKSPACE) for i in range(n_workspaces)
    ]
    rows += [
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
    builder = StackBuilder()
    line = builder.push(0, "forward", made_in, 1)
    stack_id = [line * (each is Category.ACTIVATION) for each in category]
    return Recording(
        trace=Trace.of(action=action, address=address, size=size, block_size=size, stack_id=stack_id),
        stacks=builder.build(),
        labels=Labels.of(event=[each + 1 for each in event], address=where, category=what),
        phases=Phases.of(
            phase=[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER],
            start_event=[each + n_workspaces for each in (2, 3, 5)],
            end_event=[each + n_workspaces for each in (3, 5, 7)],
        ),
    )


# Bytes per parameter of parameters, gradients and optimizer state: Adam in 32 bits, and in mixed precision
# with a master copy of the parameters (Rajbhandari et al. 2020, section 3.1, K = 12).
PER_PARAMETER = {"fp32": (4, 4, 8), "mixed": (2, 2, 12)}
N_PARAMETERS, N_TENSORS = MIB, 8


@pytest.mark.parametrize("precision", PER_PARAMETER)
@pytest.mark.parametrize("n", [2, 8, 64])
def test_sharding_is_the_closed_form(precision, n):
    parameter, gradient, state = (each * N_PARAMETERS for each in PER_PARAMETER[precision])

    found = strategies(of_sizes(parameter, gradient, state), n_ranks=n)

    assert found.peak_bytes == parameter + gradient + state + ACTIVATION
    left = {name: named(found, name).peak_bytes - ACTIVATION for name in ("ZeRO-1", "ZeRO-2", "ZeRO-3")}
    assert left == {
        # torch's ZeroRedundancyOptimizer shards by whole tensors: with more ranks, some have none.
        "ZeRO-1": parameter + gradient + state // min(n, N_TENSORS),
        "ZeRO-2": parameter + (gradient + state) // n,
        # And one parameter as a whole where it is used, with its gradient until that is reduced.
        "ZeRO-3": (parameter + gradient + state) // n + (parameter + gradient) // N_TENSORS,
    }


def test_the_path_tells_one_way_for_each_part_of_the_memory():
    found = strategies(by_hand(activation=10 * ACTIVATION), n_ranks=4)

    assert "optimizer on the CPU" in [each.name for each in found.advised]
    assert found.path == (
        "on one GPU: 2 micro-batches with accumulated gradients, then optimizer state in 8 bits; "
        "together they save less than their sum; "
        "on 4 GPUs: ZeRO-2 first"
    )


@pytest.mark.parametrize(("n_elements", "is_moved"), [(4095, False), (4096, True)])
def test_state_of_small_parameters_stays_on_the_gpu(n_elements, is_moved):
    """The default of torchao's CPUOffloadOptimizer, minimal_size, is 4,096 elements."""
    n_bytes = 4 * n_elements * N_TENSORS

    found = strategies(of_sizes(n_bytes, n_bytes, n_bytes), n_ranks=2)

    saved = {each.name: each.saved_bytes for each in found.advised}
    assert saved.get("optimizer on the CPU") == (n_bytes if is_moved else None)


def of_sizes(*sizes: int) -> Recording:
    """Parameters, gradients and state of these sizes, each in eight tensors, and activations: all at once."""
    rows = [
        (size // N_TENSORS, category)
        for size, category in zip(
            sizes, (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE), strict=True
        )
        for _ in range(N_TENSORS)
    ] + [(ACTIVATION, Category.ACTIVATION)]
    size, category = zip(*rows, strict=True)
    address = [(1 + i) << 32 for i in range(len(rows))]
    return Recording(
        trace=Trace.of(action=[Action.ALLOC] * len(rows), address=address, size=size, block_size=size),
        labels=Labels.of(event=range(1, len(rows) + 1), address=address, category=category),
        phases=Phases.of(phase=[Phase.BACKWARD], start_event=[0], end_event=[len(rows)]),
    )


def test_a_state_in_8_bits_is_a_byte_and_its_share_of_a_scale():
    said = named(strategies(by_hand()), "optimizer state in 8 bits")

    n_elements = STATE // 4
    assert said.saved_bytes == STATE - (n_elements + n_elements // 256 * 4)


@pytest.mark.parametrize(("n_bytes", "share"), [(2, 1 / 2), (4, 1 / 4)])
def test_the_share_that_8_bits_leave_depends_on_what_there_was(n_bytes, share):
    recording = by_hand()
    labels = replace(recording.labels, element_bytes=np.full(len(recording.labels), n_bytes, "u1"))

    said = named(strategies(replace(recording, labels=labels)), "optimizer state in 8 bits")

    assert said.saved_bytes == STATE - STATE * share * (1 + 4 / 256)


def test_a_state_of_8_bits_is_not_advised_to_become_one():
    recording = by_hand()
    labels = replace(recording.labels, element_bytes=np.full(len(recording.labels), 1, "u1"))

    assert "optimizer state in 8 bits" not in tried(strategies(replace(recording, labels=labels)))


def test_a_small_saving_is_no_advice():
    found = strategies(by_hand(activation=3000 * MIB))

    # Less than a hundredth of the peak each.
    assert {"optimizer state in 8 bits", "optimizer on the CPU"} <= set(found.without_effect)
    assert [each.name for each in found.advised] == ["2 micro-batches with accumulated gradients"]


@pytest.mark.parametrize(
    ("made_in", "n_bytes", "is_advised"),
    [(LINEAR, 40 * MIB, True), ("/home/me/train.py", 40 * MIB, False), (LINEAR, PARAMETER, False)],
)
def test_what_may_be_the_same_for_every_batch_does_not_shrink_with_it(made_in, n_bytes, is_advised):
    """The program's own line may compute a table of positions; what is as large as a weight may be one."""
    found = strategies(by_hand(n_bytes, made_in=made_in))
    micro = [each.name for each in found.advised if "micro-batches" in each.name]
    open_ones = [each for each in found.undecided if "micro-batches" in each.name]

    assert bool(micro) is is_advised
    # With the gradients of the micro-batch before, and nothing smaller.
    assert all(each.high_bytes >= found.peak_bytes + GRADIENT for each in open_ones)
    assert is_advised or open_ones or "2 micro-batches with accumulated gradients" in found.without_effect


def test_the_upper_bound_has_room_for_the_rest_of_every_large_block():
    """The allocator gives a block of up to 1 MiB more than requested where it has one free."""
    found = strategies(by_hand(activation=40 * MIB))
    micro = named(found, "2 micro-batches")

    # At most 8 + 16 + 20 + 8 of the micro-batch before and 8 of a new gradient. The activation and the
    # gradient are allocated after the change; parameters and state are where they were.
    assert micro.high_bytes == (8 + 16 + 20 + 8 + 8) * MIB + 2 * (MIB + 512)


def test_a_recording_that_knows_no_categories_gets_no_advice():
    bare = Recording(trace=by_hand().trace, stacks=by_hand().stacks)
    found = strategies(bare)

    assert found.advised == ()
    assert found.unknown_bytes == found.peak_bytes > 0


def test_one_gpu_cannot_shard():
    with pytest.raises(UsageError):
        strategies(by_hand(), n_ranks=1)


# -------------------------------------------------------------- a sign that is not certain is not given


def unlabelled(recording: Recording, category: Category) -> Recording:
    """The same, without the labels of that category."""
    return replace(recording, labels=recording.labels.rows(recording.labels.category != category))


def test_a_forward_whose_modules_were_not_recorded_bars_the_words_does_not_lower(tmp_path):
    whole = trained(tmp_path / "plain", "blocks", batch=1024)
    starts = whole.phases.start_event[whole.phases.phase == Phase.FORWARD]
    is_lost = (whole.marks.kind == MarkKind.MODULE) & (whole.marks.event >= starts[1])
    is_lost &= whole.marks.event < starts[2]
    genuine = peak_of(trained(tmp_path / "checkpointed", "blocks", batch=1024, how="checkpointed"))

    found = strategies(replace(whole, marks=whole.marks.rows(~is_lost)))

    assert genuine < 0.9 * found.peak_bytes
    (open_one,) = (each for each in found.undecided if "checkpointing" in each.name)
    assert open_one.low_bytes <= genuine


def test_bytes_that_nobody_knows_bar_the_words_no_effect():
    # Outside of every phase, so that no rule about lives says what they are.
    known = replace(by_hand(activation=40 * MIB), phases=Phases.of(phase=[], start_event=[], end_event=[]))
    recording = unlabelled(known, Category.ACTIVATION)

    found = strategies(recording)

    assert found.unknown_bytes == 40 * MIB
    assert found.without_effect == ()
    for each in found.undecided:
        assert "of the peak are of no known category" in each.reason


def test_no_advice_has_an_interval_above_the_peak_as_it_is():
    found = strategies(by_hand(activation=10 * ACTIVATION))

    assert found.advised
    for each in found.advised:
        assert each.low_bytes <= each.peak_bytes <= each.high_bytes <= found.peak_bytes


def test_workspaces_move_peaks_and_their_intervals_and_widen_none():
    """They are the same with every strategy: only the rest of the peak is estimated."""
    without, found = (strategies(by_hand(activation=10 * ACTIVATION, n_workspaces=n)) for n in (0, 2))

    assert len(found.advised) > 3
    for each in found.advised:
        other = named(without, each.name)
        figures = (each.saved_bytes, each.low_bytes, each.peak_bytes, each.high_bytes)
        shift = 2 * 32 * MIB
        assert figures == (
            other.saved_bytes,
            other.low_bytes + shift,
            other.peak_bytes + shift,
            other.high_bytes + shift,
        )


def test_a_run_that_ended_out_of_memory_says_of_nothing_that_it_has_no_effect():
    whole = by_hand()
    columns = {name: column[:3] for name, column in whole.trace.columns()}
    columns = {name: np.append(column, 0) for name, column in columns.items()}
    columns["action"] = np.append(whole.trace.action[:3], Action.OOM)
    columns["size"] = np.append(whole.trace.size[:3], 64 * MIB)
    died = replace(whole, trace=Trace.of(**columns))

    found = strategies(died)

    assert found.is_partial
    assert found.without_effect == ()


@pytest.mark.parametrize(
    "file",
    [
        "/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py",
        "/site-packages/deepspeed/runtime/zero/stage3.py",
    ],
)
def test_what_is_sharded_already_is_not_advised_to_be(file):
    builder = StackBuilder()
    stack = builder.add([("unshard", file, 7), ("train", "/home/me/train.py", 12)])
    plain = by_hand()
    stack_id = np.zeros(len(plain.trace), "i4")
    stack_id[2] = stack
    trace = Trace.of(**(dict(plain.trace.columns()) | {"stack_id": stack_id}))

    found = strategies(replace(plain, trace=trace, stacks=builder.build()))

    assert [name for name in tried(strategies(plain)) if name.startswith("ZeRO")]
    assert not [name for name in tried(found) if name.startswith("ZeRO")]


def test_where_evaluation_is_the_peak_its_batch_is_named():
    plain = by_hand()
    n = len(plain.trace)
    columns = {name: np.append(column, column[2:3]) for name, column in plain.trace.columns()}
    columns["address"][-1], columns["size"][-1], columns["block_size"][-1] = 9 << 32, 64 * MIB, 64 * MIB
    columns["action"][-1] = Action.ALLOC
    phases = Phases.of(
        phase=[*plain.phases.phase, Phase.EVAL],
        start_event=[*plain.phases.start_event, n],
        end_event=[*plain.phases.end_event, n + 1],
    )

    found = strategies(replace(plain, trace=Trace.of(**columns), phases=phases))

    said = named(found, "half the batch in evaluation")
    assert found.phase is Phase.EVAL
    assert said.peak_bytes == found.peak_bytes - 32 * MIB


@pytest.mark.usefixtures("own_tensors_only")
def test_micro_batches_do_not_divide_the_batch_of_an_evaluation(tmp_path):
    def peak_of(path, parts):
        net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with vramscope.record(path, device="simulated", quiet=True):
            for _ in range(3):
                optimizer.zero_grad()
                for part in torch.randn(128, 256).chunk(parts):
                    net(part).square().mean().backward()
                optimizer.step()
                with torch.no_grad():
                    net(torch.randn(4096, 256))
        return vramscope.load(path).recordings[0]

    whole, divided = peak_of(tmp_path / "whole", 1), peak_of(tmp_path / "divided", 2)
    found = strategies(whole)

    # The truth is the peak of the program that does what would be advised: it is that of the evaluation.
    assert divided.peak().allocated.n_bytes == whole.peak().allocated.n_bytes
    assert "2 micro-batches with accumulated gradients" in found.without_effect


@pytest.mark.parametrize("kept_of", ["the batch", "the output"])
def test_micro_batches_do_not_divide_what_the_program_keeps_of_every_batch(tmp_path, kept_of):
    def trained_in(path, parts):
        net = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
        optimizer, kept = torch.optim.SGD(net.parameters(), lr=0.1), []
        with vramscope.record(path, device="simulated", quiet=True):
            for _ in range(12):
                for _ in range(parts):
                    batch = torch.randn(256 // parts, 128)
                    out = net(batch)
                    out.square().mean().backward()
                    kept.append(batch if kept_of == "the batch" else out.detach())
                optimizer.step()
                optimizer.zero_grad()
        return vramscope.load(path).recordings[0]

    whole, divided = trained_in(tmp_path / "whole", 1), trained_in(tmp_path / "divided", 2)
    found = strategies(whole)

    # The truth is the peak of the program that does what would be advised.
    (said,) = (each for each in (*found.advised, *found.undecided) if each.name.startswith("2 micro"))
    assert said.low_bytes <= peak_of(divided) <= said.high_bytes


def test_what_a_recording_does_not_decide_is_one_sentence():
    open_ones = tuple(Undecided(name, 0, 1, "nothing says so", "Run each") for name in ("this", "that"))
    words = "cannot tell from this recording: this, that; nothing says so. Run each"

    assert Strategies(10, Phase.BACKWARD, undecided=open_ones).open_words == words
    assert Strategies(10, Phase.BACKWARD).open_words == ""
