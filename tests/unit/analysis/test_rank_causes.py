"""The classical causes of ranks that differ are named where they are certain, and only there."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vramscope.analysis.rank_comparison import compare_ranks, group_words, imbalance_words, odd_words
from vramscope.model.device import Device, Process
from vramscope.model.rank_summary import DeviceSummary, LineBytes, PeakPlace, RankSummary, StepRows
from vramscope.model.stacks import Frame
from vramscope.store.summaries import SUMMARY_FILE, read_summary

MIB = 1 << 20
N_STEPS = 12
BODY = LineBytes(1000 * MIB, 9, (Frame("__init__", "/net/block.py", 4),), "linear.__init__")
EMBEDDING = LineBytes(300 * MIB, 1, (Frame("__init__", "/net/model.py", 7),), "sparse.__init__")
HEAD = EMBEDDING._replace(via="linear.__init__")
PROGRAM = """
import sys, torch, vramscope
with vramscope.record(sys.argv[1], device="simulated"):
    kept = [torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 64)]
"""

IN_PARALLEL = """
import sys, torch, torch.distributed as dist, vramscope
run, store, rank, largest = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
with vramscope.record(run, device="simulated"):
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))
    net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    for step in range(4):
        net(torch.randn(2048 if step == int(largest) else 8, 512)).square().mean().backward()
        net.zero_grad()
"""


def rank_of(rank, n_ranks, *lines, stage=None, peaks=None):
    """The summary of one rank that holds *lines* at its peak."""
    total = sum(line.n_bytes for line in lines)
    number = np.arange(N_STEPS)
    peaks = np.full(N_STEPS, total) if peaks is None else np.array(peaks)
    device = DeviceSummary(
        device=Device(rank, uuid=f"GPU-{rank}"),
        source="cuda",
        n_events=100,
        peak={name: PeakPlace(total, 0, 1) for name in ("allocated", "reserved")},
        lines=lines,
        steps=StepRows.of(
            step=number,
            n_steps=number * 0 + 1,
            start_ns=number,
            end_ns=number + 1,
            allocated=peaks,
            reserved=peaks,
        ),
    )
    mesh = {} if stage is None else {"pipeline": stage}
    return RankSummary(Process(rank, n_ranks, f"node{rank}", mesh=mesh), devices=(device,))


def test_the_stages_that_hold_embeddings_are_named():
    ranks = [
        rank_of(rank, 16, *((BODY, EMBEDDING) if rank // 4 in (0, 3) else (BODY,)), stage=rank // 4)
        for rank in range(16)
    ]
    found = compare_ranks(ranks)

    assert {group.rows[0][0] // 4: group.embedding_bytes // MIB for group in found.groups} == {
        0: 300,
        1: 0,
        2: 0,
        3: 300,
    }
    assert [("holds 300 MiB of embeddings" in group_words(each)) for each in found.groups].count(True) == 2


def test_an_embedding_that_all_stages_hold_is_no_difference():
    found = compare_ranks([rank_of(rank, 8, BODY, EMBEDDING, stage=rank // 4) for rank in range(8)])

    assert [group.embedding_bytes for group in found.groups] == [0, 0]


@pytest.mark.parametrize(("line", "cause"), [(EMBEDDING, "embedding"), (HEAD, None)])
def test_a_rank_with_an_embedding_of_its_own_is_odd_because_of_it(line, cause):
    ranks = [rank_of(rank, 8, BODY, *([line] if not rank else [])) for rank in range(8)]
    (odd,) = compare_ranks(ranks).odd

    assert (odd.rank, odd.cause, odd.line_bytes) == (0, cause, 300 * MIB)
    assert ("constructs an embedding" in odd_words(odd)) == (cause is not None)


def test_torch_calls_the_constructor_of_an_embedding_by_the_name_that_is_looked_for(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    subprocess.run([sys.executable, tmp_path / "program.py", tmp_path / "run"], check=True, timeout=120)
    lines = read_summary(tmp_path / "run" / "rank0" / SUMMARY_FILE).summary.devices[0].lines

    assert {line.via: line.n_bytes for line in lines} == {
        "sparse.__init__": 1000 * 64 * 4,
        "linear.__init__": 64 * 64 * 4 + 512,
    }


def test_ranks_that_peak_before_and_after_ddp_makes_its_buckets_anew_are_alike(tmp_path):
    (tmp_path / "program.py").write_text(IN_PARALLEL)
    command = [sys.executable, tmp_path / "program.py", tmp_path / "run", tmp_path / "store"]
    ranks = [subprocess.Popen([*command, str(rank), largest]) for rank, largest in enumerate("02")]
    assert [each.wait(timeout=120) for each in ranks] == [0, 0]
    summaries = [read_summary(tmp_path / "run" / f"rank{rank}" / SUMMARY_FILE).summary for rank in (0, 1)]
    made = [{line.via for line in each.devices[0].lines} for each in summaries]

    assert ["_ddp_init_helper" in each for each in made] == [True, False]
    assert len(compare_ranks(summaries).groups) == 1


def with_last(*last_mib, usual=1000, other=None):
    """The comparison of ranks that all need 1,000 MiB in each step, and *last_mib* in the last."""
    peaks = np.full((len(last_mib), N_STEPS), usual * MIB)
    peaks[:, -1] = np.array(last_mib) * MIB
    if other is not None:
        peaks[0, other] += 100 * MIB
    return compare_ranks(
        [rank_of(rank, len(last_mib), BODY, peaks=row) for rank, row in enumerate(peaks)]
    ).imbalance


def test_words_of_an_imbalance_name_the_step_and_what_is_usual():
    once, never = with_last(1400, 1000, 1000, 1000), with_last(1000, 1000, 1000, 1000)

    assert imbalance_words(once) == (
        f"rank 0 is furthest above the median of its group, in step {N_STEPS - 1}: 1.37 GiB (median "
        "1000 MiB); in at least half of the steps the fullest rank is less than 0.05 % above the median"
    )
    assert imbalance_words(never) == "no rank peaks above the median of its group in any step"
