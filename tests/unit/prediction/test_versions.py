"""What a prediction says by the version of torch that it runs on."""

from functools import cache

import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

from vramscope.errors import CaptureError  # noqa: E402
from vramscope.prediction import dry, predict  # noqa: E402
from vramscope.prediction.dry import versions  # noqa: E402
from vramscope.prediction.dry.shim import fake_cuda, own_device  # noqa: E402

MIB = 1 << 20


def _train():
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _predicted(monkeypatch, version, program=_train):
    monkeypatch.setattr(versions, "name", lambda: version)
    return predict(program)


@pytest.mark.parametrize(("version", "afterwards_mib", "peak_mib"), [("2.14.1", 44, 44), ("2.15.0", 12, 44)])
def test_a_workspace_is_kept_before_torch_2_15_and_then_given_back(
    monkeypatch, version, afterwards_mib, peak_mib
):
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE", raising=False)
    seen = []

    def multiply():
        first = torch.ones(1024, 1024, device="cuda")
        second = first @ first
        third = second @ second
        seen.append(torch.cuda.memory_allocated())
        del second, third

    monkeypatch.setattr(versions, "name", lambda: version)

    found = predict(multiply)

    # Three matrices of 4 MiB, and 32 MiB of cuBLAS on Hopper.
    assert (seen[0], found.peak_allocated_bytes) == (afterwards_mib * MIB, peak_mib * MIB)
    assert found.certainty == "checked"


@pytest.mark.parametrize(("version", "left_mib"), [("2.11.0", 36), ("2.13.0", 4)])
def test_a_graph_that_is_deleted_leaves_its_workspace_until_torch_2_11(monkeypatch, version, left_mib):
    seen = []

    def capture():
        given, graph = torch.ones(1024, 1024, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = given @ given
        del made, graph
        seen.append(torch.cuda.memory_allocated() // MIB)

    _predicted(monkeypatch, version, capture)

    # What is given, and 32 MiB of cuBLAS on Hopper; so it was on the allocators of both versions.
    assert seen == [left_mib]


@pytest.mark.parametrize(("version", "peak_mib"), [("2.14.1", 36), ("2.15.0", 5)])
def test_from_torch_2_15_on_a_product_with_a_bias_takes_a_smaller_workspace(monkeypatch, version, peak_mib):
    def multiply():
        matrix, bias = torch.ones(512, 512, device="cuda"), torch.ones(512, device="cuda")
        kept = torch.ones(2 * MIB // 4 - 512, device="cuda")  # 2 MiB with the bias
        return torch.addmm(bias, matrix, matrix), kept

    # Two matrices of 1 MiB, 2 MiB beside them, and the workspace: 32 MiB, or 1 MiB.
    assert _predicted(monkeypatch, version, multiply).peak_allocated_bytes == peak_mib * MIB


def test_the_variable_of_torch_2_15_keeps_workspaces_as_before(monkeypatch):
    before = _predicted(monkeypatch, "2.14.1")
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")

    assert _predicted(monkeypatch, "2.15.0").peak_allocated_bytes == before.peak_allocated_bytes


@cache
def _checked_peaks():
    """The peak of the program on each version that was checked."""
    with pytest.MonkeyPatch.context() as patched:
        return [_predicted(patched, version).peak_allocated_bytes for version in versions.CHECKED]


@pytest.mark.parametrize("version", ["2.16.0", "2.14.0", "2.12.1", "2.15.0a0", "3.0.0"])
def test_a_version_that_was_not_checked_is_an_estimate_whose_range_holds_all_that_were(monkeypatch, version):
    found = _predicted(monkeypatch, version)

    low, high = found.range_bytes
    assert found.certainty == "estimate"
    assert found.reasons[0].startswith(f"torch {version}: ")
    assert all(low <= truth <= high for truth in _checked_peaks())


def test_the_build_of_a_version_does_not_matter(monkeypatch):
    monkeypatch.setattr(torch, "__version__", f"{versions.CHECKED[0]}+cu130")

    assert versions.is_checked()


def test_the_workspace_is_as_large_as_the_environment_says(monkeypatch):
    usual = _predicted(monkeypatch, "2.14.1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")

    asked = _predicted(monkeypatch, "2.14.1")

    each = 2 * 4096 * 1024 + 8 * 16 * 1024
    assert usual.peak_allocated_bytes - asked.peak_allocated_bytes == 2 * (32 * MIB - each)


def test_a_program_is_not_run_where_the_dry_run_cannot_begin(monkeypatch):
    def refuse():
        raise CaptureError("this torch lacks something")

    ran = []
    monkeypatch.setattr(dry, "prepare", refuse)

    with pytest.raises(CaptureError, match="lacks something"):
        predict(lambda: ran.append(1))

    assert ran == []


def test_torch_is_as_it_was_where_a_dry_run_cannot_begin(monkeypatch):
    before = torch.cuda.is_available
    monkeypatch.setattr(fake_cuda.DryMode, "learn_references", lambda _: 1 / 0)

    with pytest.warns(RuntimeWarning), pytest.raises(CaptureError, match="was not run"):
        predict(_train)

    assert torch.cuda.is_available is before
    assert torch.ones(2).sum().item() == 2


def test_a_process_that_uses_its_card_is_not_made_to_run_dry(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")

    with pytest.raises(CaptureError, match="vramscope predict SCRIPT"):
        own_device.own_device.__wrapped__()


@pytest.mark.parametrize("is_on", [True, False])
def test_a_recurrent_layer_is_unknown_where_cudnn_runs_it(monkeypatch, is_on):
    monkeypatch.setattr(torch.backends.cudnn, "enabled", is_on)

    found = predict(
        lambda: torch.nn.LSTM(8, 8).cuda()(torch.ones(2, 2, 8, device="cuda"))[0].sum().backward()
    )

    assert found.certainty == ("cannot_tell" if is_on else "checked")
    assert any("cuDNN" in reason for reason in found.reasons) is is_on


@pytest.mark.parametrize("is_on", [True, False])
def test_a_convolution_without_cudnn_is_checked(monkeypatch, is_on):
    monkeypatch.setattr(torch.backends.cudnn, "enabled", is_on)

    found = predict(
        lambda: torch.nn.Conv2d(3, 8, 3).cuda()(torch.ones(2, 3, 9, 9, device="cuda")).sum().backward()
    )

    assert found.certainty == ("cannot_tell" if is_on else "checked")
