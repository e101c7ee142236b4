"""In random jobs of 256 ranks, exactly the ranks that were made different are named, with their line."""

from dataclasses import replace

import numpy as np
import pytest

from vramscope.analysis.rank_comparison import compare_ranks
from vramscope.following.rank_summary import device_summary
from vramscope.model.device import Device, Process
from vramscope.model.marks import Steps
from vramscope.model.rank_summary import RankSummary
from vramscope.model.recording import Outcome, Recording
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

MIB = 1 << 20
N_RANKS = 256
N_STEPS = 24
PER_HOST = 8
STEP_NS = 10**8
FREED = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


class Job:
    """A random training job: each rank holds parameters, optimizer states, and activations in each step."""

    def __init__(self, seed, n_stages=1):
        self.random = np.random.default_rng(seed)
        self.n_stages = n_stages
        n_lines = int(self.random.integers(4, 9))
        self.parameters = self.random.integers(20, 400, n_lines)
        self.activations = self.random.integers(5, 120, n_lines)
        self.jitter = float(self.random.uniform(0, 0.01))
        # Stages have the same lines with other sizes, and the first and the last have one of their own.
        self.scale = 1 + np.cumsum(self.random.uniform(0.05, 0.5, n_stages))
        self.skew_ns = self.random.integers(-5 * 10**9, 5 * 10**9, N_RANKS // PER_HOST)
        self.stacks = StackBuilder()
        self.ids = {}

    def stack(self, name, line):
        if (name, line) not in self.ids:
            frames = [(name, "/net/model.py", line), ("main", "/net/train.py", 9)]
            self.ids[name, line] = self.stacks.add(frames)
        return self.ids[name, line]

    def rank(self, rank, *, more=0.0, leaks=False, dies=False):
        """The summary of one rank, made from a trace of its own."""
        stage = rank * self.n_stages // N_RANKS
        played = Played(self, float(self.scale[stage]))
        for line, mib in enumerate(self.parameters):
            played.alloc("parameters", 100 + line, mib)
        if self.n_stages > 1 and stage in (0, self.n_stages - 1):
            played.alloc("embedding" if stage == 0 else "head", 300, 180)
        if more:
            played.alloc("extra", 666, more * (sum(self.parameters) * 3 + sum(self.activations)))
        for step in range(N_STEPS // 2 if dies else N_STEPS):
            played.step(step, leaks=leaks)
        return self.summary(rank, played, dies=dies)

    def summary(self, rank, played, *, dies):
        host = rank // PER_HOST
        late_ns = int(self.random.integers(0, 10**6))
        clock_ns = 10**18 + int(self.skew_ns[host]) + late_ns
        action, address, size, stack = zip(*played.rows, strict=True)
        names = ("index", "start_event", "end_event", "start_ns", "end_ns")
        columns = dict(zip(names, map(np.array, zip(*played.steps, strict=True)), strict=True))
        columns |= {name: columns[name] + clock_ns for name in ("start_ns", "end_ns")}
        recording = Recording(
            source="cuda",
            device=Device(rank % PER_HOST, uuid=f"GPU-{rank}"),
            trace=Trace.of(
                action=action,
                time_ns=np.array(played.times) + clock_ns,
                address=address,
                size=size,
                block_size=size,
                stack_id=stack,
            ),
            stacks=self.stacks.build(),
            steps=Steps.of(**columns),
        )
        return RankSummary(
            process=Process(rank, N_RANKS, f"node{host}", 100 + rank),
            outcome=Outcome.DIED if dies else Outcome.FINISHED,
            started_ns=clock_ns,
            ended_ns=int(columns["end_ns"][-1]),
            devices=(device_summary(recording),),
        )

    def fleet(self):
        """All ranks but one, with three odd ones; returns them and who is what."""
        chosen = self.random.choice(N_RANKS, 4, replace=False).tolist()
        fuller, leaking, dead, missing = chosen
        summaries = [
            self.rank(rank, more=0.08 * (rank == fuller), leaks=rank == leaking, dies=rank == dead)
            for rank in range(N_RANKS)
            if rank != missing
        ]
        return summaries, chosen


class Played:
    """The events of one rank; addresses are never used twice."""

    def __init__(self, job, scale):
        self.job, self.scale = job, scale
        self.rows, self.times, self.steps, self.live = [], [], [], {}
        self.address, self.now_ns = 1 << 20, 0

    def alloc(self, name, line, mib):
        size, at = int(mib * MIB * self.scale) // 512 * 512, self.address
        self.add(Action.ALLOC, at, size, self.job.stack(name, line))
        self.live[at] = size
        self.address += size + (1 << 21)
        return at

    def free(self, at):
        for action in FREED:
            self.add(action, at, self.live[at], 0)
        del self.live[at]

    def add(self, *row):
        self.rows.append(row)
        self.times.append(self.now_ns)

    def step(self, step, *, leaks):
        first, self.now_ns = len(self.rows), step * STEP_NS
        random, jitter = self.job.random, self.job.jitter
        held = [
            self.alloc("forward", 200 + line, mib * (1 + random.uniform(-jitter, jitter)))
            for line, mib in enumerate(self.job.activations)
        ]
        for line, mib in enumerate(self.job.parameters if step == 0 else ()):
            self.alloc("adam", 400 + line, 2 * mib)
        if leaks:
            self.alloc("history", 777, 12)
        for at in held:
            self.free(at)
        self.steps.append((step, first, len(self.rows), step * STEP_NS, (step + 1) * STEP_NS))


@pytest.mark.slow
@pytest.mark.parametrize("n_stages", [1, 4])
@pytest.mark.parametrize("seed", range(10))
def test_what_was_made_different_is_named_and_nothing_else(seed, n_stages):
    job = Job(seed, n_stages)
    summaries, (fuller, leaking, dead, missing) = job.fleet()
    found = compare_ranks(summaries)

    assert found.missing == (missing,)
    assert [each.rank for each in found.ended] == [dead]
    assert found.ended[0].last_step == N_STEPS // 2 - 1
    odd = {each.rank: each for each in found.odd}
    assert sorted(odd) == sorted([fuller, leaking])
    assert (odd[fuller].why, odd[fuller].line.frames[0].line) == ("more", 666)
    assert (odd[leaking].why, odd[leaking].line.frames[0].line) == ("grows", 777)
    assert odd[leaking].bytes_per_step == pytest.approx(
        12 * MIB * job.scale[leaking * n_stages // N_RANKS], rel=0.15
    )
    stages = [{rank * n_stages // N_RANKS for rank, _ in group.rows} for group in found.groups]
    assert len(stages) == n_stages
    assert all(len(stage) == 1 for stage in stages)


@pytest.mark.parametrize("seed", range(3))
def test_clocks_that_differ_by_seconds_are_aligned_to_within_the_reported_error(seed):
    job = Job(100 + seed)
    summaries = [job.rank(rank) for rank in range(0, N_RANKS, 4)]
    found = compare_ranks(summaries).clocks

    assert found.n_steps == N_STEPS
    for host, skew_ns in enumerate(job.skew_ns.tolist()):
        truth = skew_ns - int(job.skew_ns[0])
        # Ranks reach the end of a step within a millisecond of one another.
        assert abs(found.offset_ns[f"node{host}"] - truth) <= 10**6
        assert found.error_ns[f"node{host}"] <= 10**6


def test_like_ranks_are_not_named_however_many_there_are():
    job = Job(7)
    one = job.rank(0)
    many = [replace(one, process=replace(one.process, rank=rank)) for rank in range(N_RANKS)]
    found = compare_ranks(many)

    assert found.odd == ()
    assert [len(group.rows) for group in found.groups] == [N_RANKS]
