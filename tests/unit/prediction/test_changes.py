"""Changes from outside, against the same program with the change written into it."""

from contextlib import nullcontext
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from vramscope.analysis.fit.answer import Effect  # noqa: E402
from vramscope.model.recording import Recording  # noqa: E402
from vramscope.model.trace import Action, Trace  # noqa: E402
from vramscope.prediction import Prediction, Trial  # noqa: E402
from vramscope.prediction.answering import answer_here  # noqa: E402
from vramscope.prediction.dry.changes import DryChange, blocks_of  # noqa: E402
from vramscope.prediction.once import run_once  # noqa: E402
from vramscope.prediction.what_ifs import rerun  # noqa: E402


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, n_checkpointed: int = 0) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(256) for _ in range(4)), nn.Linear(256, 512)
        self.n_checkpointed = n_checkpointed

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            again = number < self.n_checkpointed
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.head(x)


def train(
    batch: int = 256,
    parts: int = 1,
    amp: bool = False,
    n_checkpointed: int = 0,
    make=torch.optim.AdamW,
    n_loops: int = 3,
) -> None:
    model = Net(n_checkpointed).cuda()
    optimizer = make(model.parameters())
    for _ in range(n_loops):
        for _ in range(parts):
            x = torch.randn(batch, 256, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16) if amp else nullcontext():
                loss = nn.functional.mse_loss(model(x), torch.zeros(batch, 512, device="cuda"))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def run(program, change: DryChange | None = None) -> Prediction:
    return answer_here(Trial(change=change), lambda trial: run_once(trial, program))


def peaks(found: Prediction) -> tuple[int, int]:
    return found.peak_allocated_bytes, found.peak_reserved_bytes


FUSED, SGD = partial(torch.optim.AdamW, fused=True), partial(torch.optim.SGD, lr=0.1, momentum=0.9)


MANY, FEW = partial(train, batch=4096), train
"""The peak of many is in backward, that of few in the optimizer's step."""


@pytest.mark.parametrize(
    ("change", "program", "written"),
    [
        (DryChange(is_autocast=True), MANY, partial(MANY, amp=True)),
        (DryChange(checkpointed=-1), MANY, partial(MANY, n_checkpointed=4)),
        (DryChange(checkpointed=2), MANY, partial(MANY, n_checkpointed=2)),
        (DryChange(is_autocast=True, checkpointed=-1), MANY, partial(MANY, amp=True, n_checkpointed=4)),
        (DryChange(optimizer="fused"), FEW, partial(FEW, make=FUSED)),
        (DryChange(optimizer="loop"), FEW, partial(FEW, make=partial(torch.optim.AdamW, foreach=False))),
        (DryChange(optimizer="momentum"), FEW, partial(FEW, make=SGD)),
    ],
)
def test_a_change_from_outside_needs_what_the_author_of_the_same_change_would_need(change, program, written):
    changed = run(program, change)

    assert not changed.unchanged
    assert peaks(changed) == peaks(run(written))
    assert peaks(changed) != peaks(run(program))


class Adapted(nn.Module):
    """A linear layer as peft's LoRA has it: the layer itself frozen, and an adapter beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 16, bias=False)
        self.up = nn.Linear(16, base.out_features, bias=False)

    def forward(self, x):
        result = self.base(x)
        return result + self.up(self.down(x)) * 2


def train_adapters(batch: int) -> None:
    model = Net().requires_grad_(False)
    for block in model.blocks:
        block.up, block.down = Adapted(block.up), Adapted(block.down)
    model.head = Adapted(model.head)
    model.cuda()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    for _ in range(3):
        x = torch.randn(batch, 256, device="cuda")
        loss = nn.functional.mse_loss(model(x), torch.zeros(batch, 512, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("batch", [256, 4096])
def test_adapters_from_outside_need_what_adapters_in_the_model_need(batch: int):
    changed = run(partial(train, batch=batch), DryChange(adapter_rank=16))

    assert not changed.unchanged
    assert peaks(changed) == peaks(run(partial(train_adapters, batch)))


def train_shards(model: Net, groups: bool, batch: int) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    torch.distributed.init_process_group("nccl", rank=0, world_size=8)
    for block in model.blocks:
        fsdp.fully_shard(block)
    fsdp.fully_shard(model)
    loop(model, groups, batch)


def loop(model: nn.Module, groups: bool, batch: int) -> None:
    given = (each for each in model.parameters() if each.requires_grad)
    if groups:
        of_bias = [each for each in model.parameters() if each.ndim < 2]
        given = [{"params": of_bias, "lr": 0.1}, {"params": (each for each in given if each.ndim > 1)}]
    optimizer = torch.optim.AdamW(given)
    for _ in range(3):
        loss = model(torch.randn(batch, 256, device="cuda")).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def on_host() -> Net:
    return Net()


def on_card() -> Net:
    with torch.device("cuda"):
        return Net()


def half_frozen() -> Net:
    model = Net()
    model.blocks[:2].requires_grad_(False)
    return model


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (on_host, 4096),
        *(pytest.param(each, 256, marks=pytest.mark.exhaustive) for each in (on_card, half_frozen)),
    ],
)
def test_a_model_that_is_sharded_from_outside_needs_what_its_author_would_need(make, batch: int):
    def plain():
        loop(make().cuda(), make is on_card, batch)

    changed = run(plain, DryChange(n_cards=8))

    assert not changed.unchanged
    assert peaks(changed) == peaks(run(lambda: train_shards(make(), make is on_card, batch)))
    assert peaks(changed) != peaks(run(plain))
    assert changed.certainty == "estimate"
    assert len(changed.reasons) == 1
    assert "NCCL" in changed.reasons[0]


def _captured() -> None:
    model = Net()
    given = list(model.parameters())
    model.cuda()
    torch.optim.AdamW(given)


def _distributed() -> None:
    torch.distributed.init_process_group("nccl", rank=0, world_size=2)
    loop(Net().cuda(), False, 8)


def _with_a_teacher() -> None:
    Net().cuda()
    loop(Net().cuda(), False, 8)


def _with_a_critic() -> None:
    critic = nn.Linear(8, 8).cuda()
    torch.optim.Adam(critic.parameters())
    loop(Net().cuda(), False, 8)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda: loop(nn.Sequential(nn.Linear(256, 8)).cuda(), False, 8), "no model with repeated blocks"),
        (_captured, "no longer, or never were, those of a model"),
        (_distributed, "on several cards already"),
        (_with_a_teacher, "a model that no optimizer trains"),
        (_with_a_critic, "no model with repeated blocks"),
        (lambda: Net().requires_grad_(False).cuda(), "no optimizer trains a model"),
    ],
)
def test_a_program_that_cannot_be_sharded_says_why(program, why: str):
    assert why in run(program, DryChange(n_cards=8)).unchanged


_SCRIPT = """
import torch
model = torch.nn.Sequential(
    *(torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.Linear(8192, 2048)) for _ in range(8))
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.exhaustive
def test_a_large_model_that_is_sharded_surely_saves(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    trace = Trace.of(action=[Action.ALLOC], address=[0], size=[8], block_size=[8])

    found = rerun(Recording(trace=trace), str(tmp_path / "train.py"), None, 4, lambda *_: None)

    row = next(each for each in found.rows if each.name.endswith("over 4 GPUs"))
    assert row.peak is not None
    assert found.plain is not None
    assert found.effect(row) is Effect.SAVES
    assert row.peak.allocated_bytes < row.peak.reached_allocated_bytes < (row.peak.most_bytes or 0)
    # A quarter of parameters, gradients and both moments, but whole blocks beside them.
    plain_bytes = found.plain.allocated_bytes
    assert plain_bytes / 4 < row.peak.reached_allocated_bytes < plain_bytes / 2


def test_state_in_8_bits_has_a_byte_for_each_element_and_a_scale_for_256():
    """Equal to bitsandbytes 0.50.2 itself, run dry in the same program: 94,547,456 and 294,684,160 bytes."""
    few, many = (run(program, DryChange(optimizer="8bit")) for program in (FEW, MANY))
    sizes = [each.numel() for each in Net().parameters()]
    of_small = [4 * n for n in sizes if n < 4096]
    of_large = [n_bytes for n in sizes if n >= 4096 for n_bytes in (n, 4 * -(-n // 256))]
    blocks = [-(-n_bytes // 512) * 512 for n_bytes in (*of_small, *of_large, 4 * 256)]

    assert few.recording.categories().totals["optimizer_state"] == 2 * sum(blocks)
    assert [each.peak_allocated_bytes for each in (few, many)] == [94_547_456, 294_684_160]


@pytest.mark.parametrize("batch", [128, 2048])
def test_accumulation_from_outside_steps_after_every_second_call(batch: int):
    changed = run(partial(train, batch=batch, n_loops=6), DryChange(accumulated=2))

    assert not changed.unchanged
    assert peaks(changed) == peaks(run(partial(train, batch=batch, parts=2)))
    assert peaks(changed) != peaks(run(partial(train, batch=batch))) or batch == 128


def test_a_program_that_ends_before_its_second_accumulated_step_gives_no_figure():
    assert "ends too early" in run(train, DryChange(accumulated=2)).unchanged


def test_a_scheduler_accepts_an_optimizer_that_accumulates():
    def program():
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(8):
            model(torch.zeros(2, 8, device="cuda")).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    found = run(program, DryChange(accumulated=2))

    assert found.peak_allocated_bytes > 0
    assert len(found.recording.steps) >= 3


@pytest.mark.parametrize(
    ("change", "program", "why"),
    [
        (DryChange(is_autocast=True), partial(train, amp=True), "autocast already"),
        (DryChange(optimizer="fused"), partial(train, make=SGD), "no Adam"),
    ],
)
def test_a_change_without_effect_is_reported(change, program, why):
    assert why in run(program, change).unchanged


def test_a_model_without_repeated_blocks_has_nothing_to_checkpoint():
    def program():
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
        model(torch.zeros(2, 8, device="cuda")).sum().backward()

    assert (
        "no model that runs with gradients has repeated blocks"
        in run(program, DryChange(checkpointed=-1)).unchanged
    )


def test_torch_is_as_before_after_a_change():
    before = torch.optim.AdamW.__init__, torch.optim.Optimizer.zero_grad, torch.autograd.backward

    change = DryChange(is_autocast=True, checkpointed=-1, optimizer="momentum", accumulated=2)
    found = run(partial(train, n_loops=6), change)

    assert not found.unchanged

    assert (torch.optim.AdamW.__init__, torch.optim.Optimizer.zero_grad, torch.autograd.backward) == before


def test_blocks_are_the_outermost_repeated_modules_with_parts():
    inner = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)))
    model = nn.ModuleDict({"trunk": inner, "head": nn.Linear(2, 2)})

    for whole in (model, inner):
        assert [id(each) for each in blocks_of(whole)] == [id(each) for each in inner]
