"""What a dry run finds, where it can be counted by hand: no GPU, no stand-in, no content in any tensor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from vramscope.analysis.categories import categories  # noqa: E402
from vramscope.loading import load  # noqa: E402
from vramscope.model.marks import Phase  # noqa: E402
from vramscope.prediction import predict, predict_largest  # noqa: E402

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

MIB = 1 << 20


def test_a_tensor_takes_what_it_holds_rounded_to_512_bytes():
    def program():
        kept = torch.zeros(1000, device="cuda")
        del kept
        torch.zeros(100, device="cuda")

    found = predict(program)

    assert found.peak_allocated_bytes == 4096
    assert found.peak_reserved_bytes == 2 * MIB


def test_the_largest_size_fills_the_card_and_the_search_leaves_nothing_on_the_disk(tmp_path, monkeypatch):
    def program(size):
        kept = [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range(size)]
        del kept

    found = predict(lambda: program(1), capacity="6GiB", directory=tmp_path / "one")
    room = found.capacity_bytes - found.context_bytes
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    largest = predict_largest(program, start=4, capacity="6GiB")

    assert largest.fitting == room // (256 * MIB)
    assert largest.is_exact
    assert [each.name for each in tmp_path.iterdir()] == ["one"]


def test_a_linear_model_needs_its_parameters_gradients_states_and_the_workspaces():
    def program():
        model = torch.nn.Linear(1024, 1024, bias=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            model(torch.zeros(1, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    found = predict(program, card="A100 40")

    parameter, workspace, small = 4 * MIB, 8_519_680, 4096
    # Weight, gradient and momentum; the next gradient before it is added; one workspace for each thread.
    assert found.peak_allocated_bytes // MIB == (4 * parameter + 2 * workspace + 3 * small) // MIB


def test_the_workspace_of_each_thread_is_one_and_no_gradient():
    def program():
        model = torch.nn.Linear(512, 512, bias=False).cuda()
        model(torch.zeros(1, 512, device="cuda")).sum().backward()

    totals = categories(predict(program, card="A100 40").recording).totals

    assert totals["workspace"] == 2 * 8_519_680
    assert totals["parameter"] == totals["gradient"] == MIB


def test_a_model_of_seven_billion_parameters_needs_no_memory_here():
    def program():
        layers = [torch.nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16) for _ in range(104)]
        torch.nn.Sequential(*layers).to("cuda")

    found = predict(program, card="H100")

    assert found.peak_allocated_bytes == 104 * 8192 * 8192 * 2


def test_memory_runs_out_at_the_line_that_asks_for_too_much():
    def program():
        first = torch.zeros(100 * MIB, device="cuda")
        second = torch.zeros(200 * MIB, device="cuda")  # the line
        return first, second

    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# the line")
    )

    found = predict(program, card="H100", capacity="1742MiB")

    assert found.fits is False
    assert found.out_of_memory == f"{Path(__file__).name}:{line}"
    assert found.peak_allocated_bytes == 400 * MIB


def test_a_program_that_makes_room_after_an_error_goes_on():
    def program():
        try:
            torch.zeros(1000 * MIB, device="cuda")
        except torch.OutOfMemoryError:
            torch.zeros(50 * MIB, device="cuda")

    found = predict(program, capacity="1266MiB")

    assert found.peak_allocated_bytes == 200 * MIB


@pytest.mark.parametrize(("capacity", "phases"), [("1442MiB", [Phase.FORWARD]), ("80GiB", None)])
def test_a_program_that_runs_out_in_its_first_forward_does_so_in_step_0(tmp_path, capacity, phases):
    def program():
        model = torch.nn.Linear(256, MIB // 4, bias=False, device="cuda")
        for _ in range(2):
            model(torch.zeros(512, 256, device="cuda")).sum().backward()
            model.zero_grad()

    found = predict(program, capacity=capacity, directory=tmp_path / "run")
    (recording,) = load(tmp_path / "run").recordings
    whole = [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.ZERO_GRAD] * 2

    assert (found.fits is False) == (phases is not None)
    assert recording.phases.phase.tolist() == (phases or whole)
    assert len(recording.steps) == (1 if phases else 2)


def test_memory_that_runs_out_in_backward_is_raised_after_it():
    def program():
        weight = torch.zeros(50 * MIB, device="cuda", requires_grad=True)
        weight.exp().sum().backward()

    found = predict(program, capacity="1242MiB")

    assert found.fits is False


def test_autocast_keeps_a_copy_of_each_weight_in_half_precision():
    def program():
        model = torch.nn.Linear(1024, 1024, bias=False).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(torch.zeros(1, 1024, device="cuda"))
            assert out.dtype == torch.bfloat16
            assert out.device.type == "cuda"

    found = predict(program, card="A100 40")

    # Weight, its copy, the workspace; input, its copy and the output.
    assert found.peak_allocated_bytes == 4 * MIB + 2 * MIB + 8_519_680 + 4096 + 2048 + 2048


def test_what_depends_on_values_is_unknown_and_says_where():
    def program():
        kept = torch.randn(1024, device="cuda")
        return kept[kept > 0]

    found = predict(program)

    assert found.certainty == "cannot_tell"
    assert found.fits is None
    assert "test_dry_run.py" in found.reasons[0]
    assert found.peak_allocated_bytes >= 4096


def test_recurrent_layers_and_convolutions_are_not_predicted():
    def recurrent():
        torch.nn.LSTM(8, 8).cuda()(torch.zeros(3, 2, 8, device="cuda"))[0].sum().backward()

    def convolution():
        torch.nn.Conv2d(3, 8, 3).cuda()(torch.zeros(1, 3, 32, 32, device="cuda"))

    # Other tests of this process may have switched cuDNN off, without which convolutions are known.
    with torch.backends.cudnn.flags(enabled=True):
        found = [predict(one) for one in (recurrent, convolution)]
    assert [one.certainty for one in found] == ["cannot_tell"] * 2
    assert len(found[0].reasons) == 1  # of a layer, its forward and its backward


def test_data_of_the_host_that_is_set_to_the_card_stays_the_same_tensor():
    def program():
        p = torch.nn.Parameter(torch.zeros(1 << 18))
        p.grad = torch.zeros(1 << 18)
        names = {p: "p"}
        p.data = p.to("cuda")
        view = p.detach()[256:]
        assert names[p] == "p"
        assert p.is_cuda
        assert p.requires_grad
        assert view.untyped_storage().data_ptr() == p.untyped_storage().data_ptr() == p.data_ptr()
        assert view.data_ptr() == p.data_ptr() + 1024
        assert torch.zeros(1 << 18, device="cuda").data_ptr() != p.data_ptr()
        p.grad = None
        (p * 2).sum().backward()
        assert p.grad.is_cuda

    found = predict(program)

    assert found.peak_allocated_bytes >= 2 * MIB


def test_a_module_is_trained_on_shapes_and_stays_as_it_was():
    module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    before = [one.clone() for one in module.parameters()]

    found = predict(module, inputs=[(64, 256)])

    n_parameters = sum(one.numel() for one in before)
    assert found.peak_allocated_bytes > 4 * 4 * n_parameters
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    assert not torch.cuda.is_available()


def test_the_recording_is_one_that_every_analysis_reads():
    def program():
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            model(torch.zeros(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = predict(program, steps=2)
    recording = found.recording

    assert recording.source == "predicted"
    assert recording.peak().allocated.n_bytes == found.peak_allocated_bytes
    assert len(recording.steps) == 3
    categories = recording.categories()
    assert categories is not None


def _run(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "vramscope", "predict", *options, str(script), "--steps", "5"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)


TRAIN = """
import sys
import torch
assert sys.argv[1:] == ["--steps", "5"]
assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
model = torch.nn.Linear(256, 256).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(1000):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(8, 256).cuda()).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(step, loss.item(), torch.cuda.memory_allocated())
torch.save(model.state_dict(), "model.pt")
"""


def test_a_script_that_says_cuda_is_predicted_as_it_is(tmp_path: Path):
    done = _run(tmp_path, TRAIN, "--json")

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["fits"] is True
    assert answer["peak_allocated_bytes"] > 2 * (32 << 20)
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch\nopen('data/train.bin')\n", ["train.py:2", "train.bin"]),
        ("import torch, urllib.request as r\nr.urlopen('http://example.com')\n", ["train.py:2", "network"]),
        ("import torch\ntorch.zeros(3, device='cuda') @ torch.zeros(4, device='cuda')\n", ["train.py:2"]),
    ],
)
def test_a_script_that_cannot_run_dry_ends_in_one_sentence(tmp_path: Path, text: str, words: list[str]):
    done = _run(tmp_path, text)

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(word in done.stderr for word in words)


def _picture_net(*, cudnn: bool = True, n_layers: int = 3):
    layers = [
        one for _ in range(n_layers) for one in (torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
    ]

    def program():
        torch.nn.Sequential(*layers).cuda()(torch.zeros(4, 8, 256, 256, device="cuda")).sum().backward()

    with torch.backends.cudnn.flags(enabled=cudnn):
        return predict(program)


def test_a_net_of_convolutions_has_no_upper_bound_and_a_lower_one_without_what_blocks_round_up():
    found = _picture_net()

    assert (found.certainty, found.fits) == ("cannot_tell", None)
    low, high = found.range_bytes
    assert high is None
    # Workspaces between them change how blocks are rounded: a ResNet-50 takes 0.06 % less on an H100.
    assert found.peak_allocated_bytes - MIB <= low < found.peak_allocated_bytes
