"""A MemPool, a captured graph and a graph in a shared pool: named series, equal to torch's own snapshot."""

import json

import pytest
import torch
from standin_fixtures import AFTER, BEFORE, TORCH

from vramscope.loading import load
from vramscope.model.marks import MarkKind
from vramscope.prediction import predict

pytestmark = pytest.mark.standin

PROGRAM = """
import json, sys
import vramscope

def of_pools():
    # torch's word: the segments of each pool, and what is allocated in them.
    found = {}
    for segment in torch.cuda.memory_snapshot():
        row = found.setdefault(str(tuple(segment["segment_pool_id"])), [0, 0])
        row[0] += segment["allocated_size"]
        row[1] += segment["total_size"]
    # Before torch 2.8 a snapshot taken while a pool is in use shows that pool alone.
    is_whole = sum(row[1] for row in found.values()) == torch.cuda.memory_reserved()
    return [is_whole, {pool: row for pool, row in found.items() if pool != "(0, 0)"}]

def at(recorder):
    recorder.mark(json.dumps(of_pools()))

still = torch.ones(1000, device="cuda")
early = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(early):
    before = torch.empty(900_000, device="cuda")
with vramscope.record(sys.argv[1], quiet=True) as recorder:
    at(recorder)
    pool = torch.cuda.MemPool()  # line of the pool
    with torch.cuda.use_mem_pool(pool):
        kept = [torch.empty(n * 700_000, device="cuda") for n in (1, 2, 3)]
        at(recorder)
        del kept[1]
    at(recorder)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # line of the graph
        result = still * 2 + 1
    at(recorder)
    handle = torch.cuda.graph_pool_handle()
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    results = []
    for each in graphs:
        with torch.cuda.graph(each, pool=handle):  # line of the shared pool
            results.append(still * 3)
    at(recorder)
    del before, kept
    at(recorder)
answer = [str(tuple(each)) for each in (early.id, pool.id, graph.pool(), handle)]
"""


def test_pools_are_series_of_their_own_with_names_and_torchs_bytes(python, tmp_path):
    text = BEFORE + PROGRAM + AFTER.format(path=str(tmp_path / "answer.json"))
    (tmp_path / "script.py").write_text(text)
    done = python(tmp_path / "script.py", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    early, pool, graph, handle = json.loads((tmp_path / "answer.json").read_text())
    (recording,) = load(tmp_path / "run").recordings
    found = {str(each.name.id): each for each in recording.private_pools()}
    marks = recording.marks.rows(recording.marks.kind == MarkKind.MARK)
    lines = text.splitlines()
    line = {
        word: 1 + next(n for n, each in enumerate(lines) if each.endswith(word))
        for word in ("the pool", "the graph", "the shared pool")
    }

    assert len(marks) == 6
    for name, event in zip(marks.name.tolist(), marks.event.tolist(), strict=True):
        is_whole, truth = json.loads(marks.names[name])
        ours = {each: list(use.levels.at(event)) for each, use in found.items() if any(use.levels.at(event))}
        assert {each: row for each, row in ours.items() if is_whole or each in truth} == truth
    assert [str(found[each].name).partition(": ")[2] for each in (early, pool, graph, handle)] == [
        "",
        f"MemPool of {tmp_path.name}/script.py:{line['the pool']}",
        f"CUDA graph of {tmp_path.name}/script.py:{line['the graph']}",
        f"CUDA graph of {tmp_path.name}/script.py:{line['the shared pool']}",
    ]


IN_A_DRY_RUN = """
import torch
M, answer = 1 << 18, []

def see():
    answer.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])

def junk(n):
    torch.empty(n * M, device="cuda")
    see()

net = torch.nn.Sequential(torch.nn.Linear(700, 900), torch.nn.Tanh(), torch.nn.Linear(900, 300)).cuda()
outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
for _ in range(2):
    with torch.cuda.use_mem_pool(outer):
        loss = net(torch.ones(1000, 700, device="cuda")).pow(2).mean()
        loss.backward()  # on a thread of its own, which belongs to no pool
        see()
        with torch.cuda.use_mem_pool(inner):
            kept = [torch.empty(n * M, device="cuda") for n in (20, 30, 7)]
        junk(20)
del outer, loss, kept[1]
see()
torch.cuda.empty_cache()
see()
graphs, results, given = [], [], torch.ones(1000, 1000, device="cuda")
for pool in (inner.id, handle := torch.cuda.graph_pool_handle(), handle):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        results.append(given * 2 + 1)
    graphs.append(graph)
    see()
del graph, graphs[1:], results, kept
torch.cuda.empty_cache()
see()
del graphs, inner
see()
whole = torch.cuda.MemPool(no_split=True)
with torch.cuda.use_mem_pool(whole):
    kept = [torch.empty(n * M, device="cuda") for n in (12, 4, 4, 8)]
    kept += [torch.empty(1000, device="cuda") for _ in range(3)]
    del kept[0]
    junk(2)
junk(200)
lent = torch.cuda.MemPool(use_on_oom=True)
with torch.cuda.use_mem_pool(lent):
    junk(250)  # more than is free: the cache outside of the pool is released
junk(200)
junk(150)
kept.append(torch.empty(120 * M, device="cuda"))
del lent
see()
answer.append([torch.cuda.memory_stats()["num_alloc_retries"]])
"""


@pytest.mark.skipif(
    not torch.__version__.startswith(TORCH),
    reason="a dry run by one version of torch says nothing of another",
)
def test_a_dry_run_has_the_pools_of_the_allocator_act_by_act(run_standin):
    truth, found = run_standin(IN_A_DRY_RUN, STANDIN_TOTAL_MIB=1000), {}

    predict(lambda: exec(IN_A_DRY_RUN, found), steps=None, capacity="1242MiB")

    assert found["answer"] == truth
