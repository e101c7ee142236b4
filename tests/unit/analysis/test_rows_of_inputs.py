"""What splits the rows of an input is advised with its condition where one input serves all steps."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")
N_NODES = 512


class Graph(nn.Module):
    """Two layers of a graph network: a node's result is made of its neighbours'."""

    def __init__(self, adjacency):
        super().__init__()
        self.adjacency, self.into, self.out = adjacency, nn.Linear(64, 512), nn.Linear(512, 8)

    def forward(self, x):
        return self.adjacency @ self.out(torch.relu(self.adjacency[: len(x)] @ self.into(x)))


def recorded(path, model, inputs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for x in inputs:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (found,) = vramscope.load(path).recordings
    (said,) = (each for each in strategies(found).advised if "micro-batches" in each.name)
    return said


def test_one_graph_is_split_on_a_condition_alone(tmp_path):
    """The truth: half of the rows do not even multiply."""
    graph, x = Graph(torch.rand(N_NODES, N_NODES)), torch.randn(N_NODES, 64)
    said = recorded(tmp_path, graph, [x] * 4)

    assert said.how.startswith("if the rows of an input are samples")
    with pytest.raises(RuntimeError):
        graph(x[: N_NODES // 2])


def test_batches_are_split_without_a_condition(tmp_path):
    mlp = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
    said = recorded(tmp_path / "made", mlp, (torch.randn(N_NODES, 64) for _ in range(4)))
    assert said.how.startswith("split the batch")

    loader = torch.utils.data.DataLoader(torch.randn(4 * N_NODES, 64), batch_size=N_NODES)
    assert recorded(tmp_path / "loaded", mlp, loader).how.startswith("split the batch")


@pytest.mark.parametrize("has_loader", [False, True])
def test_a_loader_is_named_where_there_is_one(tmp_path, has_loader):
    """An evaluation of more rows than training has, of a tensor or of a loader's batches."""
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.randn(8 * N_NODES, 64)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(4):
            model(torch.randn(N_NODES, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            loader = torch.utils.data.DataLoader(samples, batch_size=len(samples))
            for batch in loader if has_loader else [samples]:
                model(batch)
    (found,) = vramscope.load(tmp_path).recordings
    (said,) = (each for each in strategies(found).advised if "evaluation" in each.name)

    assert ("DataLoader" in said.how) == has_loader
