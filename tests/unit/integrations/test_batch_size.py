"""The largest batch that fits is found by trying, and leaves no trace."""

import random
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.errors import UsageError  # noqa: E402

nn = torch.nn


def out_of_memory(text: str = "CUDA out of memory. Tried to allocate 2.00 GiB") -> Exception:
    return torch.OutOfMemoryError(text)


@pytest.mark.parametrize(
    ("start", "largest"),
    [*((start, largest) for start in (1, 3, 8) for largest in (0, 1, 2, 3, 7, 8)), (3, 100), (8, 1000)],
)
def test_the_largest_size_that_fits_is_found(largest, start):
    def step(batch: int) -> None:
        if batch > largest:
            raise out_of_memory()

    assert vramscope.find_batch_size(step, start) == largest


def test_no_more_is_tried_than_the_limit():
    tried = []

    assert vramscope.find_batch_size(tried.append, limit=48) == 48
    assert max(tried) == 48


def test_a_size_that_only_fits_once_does_not_fit():
    calls: list[int] = []

    def step(batch: int) -> None:
        calls.append(batch)
        if batch > 4 and calls[-2:] == [batch, batch]:
            raise out_of_memory()

    assert vramscope.find_batch_size(step) == 4


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("CUDA error: out of memory"),
        MemoryError(),
    ],
)
def test_libraries_have_other_words_for_it(error):
    def step(batch: int) -> None:
        if batch > 4:
            raise error

    assert vramscope.find_batch_size(step) == 4


def test_another_error_is_the_users():
    def step(batch: int) -> None:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({batch}x8 and 9x8)")

    with pytest.raises(RuntimeError, match="shapes"):
        vramscope.find_batch_size(step)


def test_what_failed_lets_go_of_its_tensors():
    seen: list[weakref.ref] = []

    def step(batch: int) -> None:
        assert all(tensor() is None for tensor in seen)
        held = torch.zeros(batch)
        seen.append(weakref.ref(held))
        if batch > 2:
            raise out_of_memory()

    assert vramscope.find_batch_size(step) == 2


def test_what_was_being_handled_when_it_failed_lets_go_too():
    seen: list[weakref.ref] = []

    def inner(batch: int) -> None:
        held = torch.zeros(batch)
        seen.append(weakref.ref(held))
        raise KeyError(batch)

    def step(batch: int) -> None:
        assert all(tensor() is None for tensor in seen)
        if batch > 2:
            try:
                inner(batch)
            except KeyError:
                raise out_of_memory() from None

    assert vramscope.find_batch_size(step) == 2


def test_random_numbers_and_buffers_that_no_state_tells_are_as_they_were():
    model = nn.Linear(2, 2)
    model.register_buffer("seen", torch.zeros(1), persistent=False)
    before = draws()

    def step(batch: int) -> None:
        model.seen.add_(batch)
        random.random(), np.random.rand()  # noqa: NPY002
        if batch > 2:
            raise out_of_memory()

    assert vramscope.find_batch_size(step, restore=[model]) == 2
    assert model.seen.item() == 0
    assert draws() == before


def draws():
    return random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def test_an_optimizer_that_has_stepped_before_keeps_its_state():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: int) -> None:
        if batch > 4:
            raise out_of_memory()
        model(torch.randn(batch, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(1)
    before = {key: value.clone() for key, value in optimizer.state[model.weight].items()}

    assert vramscope.find_batch_size(step, restore=[model, optimizer]) == 4
    after = optimizer.state[model.weight]
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_everything_is_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.get_rng_state()

    def step(batch: int) -> None:
        if batch > 8:
            raise out_of_memory()
        model(torch.randn(batch + 1, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert vramscope.find_batch_size(step, restore=[model, optimizer]) == 8

    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(
        torch.equal(parameter.grad, gradient)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True)
    )
    assert optimizer.state_dict()["state"] == {}
    assert torch.equal(torch.get_rng_state(), random)


def test_it_is_as_it_was_after_an_error_too():
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()

    def step(batch: int) -> None:
        with torch.no_grad():
            model.weight.add_(1)
        raise ValueError(str(batch))

    with pytest.raises(ValueError, match="1"):
        vramscope.find_batch_size(step, restore=[model])
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(("start", "limit"), [(0, 8), (9, 8)])
def test_a_start_that_cannot_be_meant_is_refused(start, limit):
    with pytest.raises(UsageError):
        vramscope.find_batch_size(print, start, limit=limit)


def test_modules_and_optimizers_are_put_back_without_being_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    numbers = torch.get_rng_state()

    def step(batch: int) -> None:
        if batch > 4:
            raise out_of_memory()
        optimizer.zero_grad()
        model(torch.randn(batch + 1, 8)).sum().backward()
        optimizer.step()

    assert vramscope.find_batch_size(step) == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(optimizer.state) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_parameters_of_no_module_are_put_back_too():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step(batch: int) -> None:
        if batch > 2:
            raise out_of_memory()
        (weight * batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert vramscope.find_batch_size(step) == 2
    assert weight.tolist() == [1, 1, 1, 1]
