"""Calling the transforms of a data set, modules too, is no forward; a backward says what it returns."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from vramscope.model.marks import BackwardKeeps, MarkKind, Phase


class Scaled(nn.Module):
    """A transform like torchvision's: a module without parameters, with one inside."""

    def __init__(self):
        super().__init__()
        self.then = nn.ReLU()

    def forward(self, x):
        return self.then(x * 2)


class Pictures(Dataset):
    """Applies a transform, and optionally a network of its own, to each sample."""

    def __init__(self, network=None):
        self.transform = Scaled()
        self.network = network

    def __len__(self):
        return 8

    def __getitem__(self, at):
        x = self.transform(torch.full((16,), float(at)))
        return self.network(x).detach() if self.network is not None else x


def trained(recording, data):
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording:
        for x in DataLoader(data, batch_size=2):
            model(Scaled()(x)).square().mean().backward()
            optimizer.step()
    return recording.sink.phases()


def test_transforms_in_a_loader_are_no_forwards(recorded):
    phases = trained(recorded(), Pictures())

    is_forward = phases.phase == Phase.FORWARD
    # Of each of the four batches: the network's, and the module that the loop itself calls.
    assert is_forward.sum() == 8
    assert (phases.depth[is_forward] == 0).all()


def test_a_network_in_a_loader_has_its_forwards(recorded):
    phases = trained(recorded(), Pictures(nn.Linear(16, 16)))

    assert (phases.phase == Phase.FORWARD).sum() == 8 + 8


def test_the_mark_of_a_backward_says_whether_its_gradients_are_returned(recorded):
    recording = recorded()
    weight = torch.ones(4, requires_grad=True)
    with recording:
        weight.square().sum().backward()
        torch.autograd.grad(weight.square().sum(), weight)
        torch.autograd.grad(weight.square().sum(), weight, create_graph=True)
    marks = recording.sink.marks
    asked = (marks.kind == MarkKind.PHASE_BEGIN) & (marks.phase == Phase.BACKWARD)

    assert marks.value[asked].tolist() == [
        BackwardKeeps.NOTHING,
        BackwardKeeps.RETURNS,
        BackwardKeeps.RETURNS + BackwardKeeps.A_NEW_GRAPH,
    ]
