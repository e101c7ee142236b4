"""W&B, MLflow and TensorBoard keep the scalars of a loop, and the page of its recording."""

import os
import socket
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.integrations.loop import VramscopeHandler  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_tensors_only")]
SIZES = (4, 60, 8, 100, 30, 2)
PEAK = "vram/peak_allocated_bytes"


@pytest.fixture
def trained(tmp_path):
    """Train with a log, and return the peaks of the steps by number, as the report gives them."""

    def train(log):
        net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
        optimizer = torch.optim.Adam(net.parameters())
        with VramscopeHandler(tmp_path / "run", log=log, every=1, device="simulated", quiet=True) as handler:
            for size in SIZES:
                net(torch.ones(16 * size, 128)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                handler.step()
        (recording,) = vramscope.load(tmp_path / "run").recordings
        return {step.index + 1: step.allocated_bytes for step in recording.summary().steps}

    return train


def is_page(content: bytes) -> bool:
    return content.lstrip()[:15].lower() == b"<!doctype html>" and len(content) > 10_000


def test_tensorboard_has_every_scalar_and_the_page(trained, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("dash")
    from vramscope.integrations.tensorboard import TensorBoardLog

    peaks = trained(TensorBoardLog(tmp_path / "board"))
    read = events.EventAccumulator(str(tmp_path / "board"))
    read.Reload()

    # TensorBoard keeps 32-bit floats, which hold these sizes exactly: they are multiples of 512.
    assert {each.step: each.value for each in read.Scalars(PEAK)} == peaks
    assert {"vram/fragmentation", "vram/growth_bytes_per_step"} <= set(read.Tags()["scalars"])
    assert is_page((tmp_path / "board" / "vramscope.html").read_bytes())


def test_wandb_offline_has_every_scalar_and_the_page(trained, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs wandb: make test-integrations")
    pytest.importorskip("dash")
    from vramscope.integrations.wandb import WandbLog

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    logged = []
    with wandb.init(project="p", mode="offline", dir=tmp_path) as run:
        log, original = WandbLog(run), run.log_artifact
        monkeypatch.setattr(run, "log_artifact", lambda each: logged.append(each) or original(each))
        peaks = trained(log)
        last = dict(run.summary)
    (file,) = tmp_path.rglob("*.wandb")
    content = file.read_bytes()

    assert last[PEAK] == peaks[len(SIZES)]
    assert last["vram/step"] == len(SIZES)
    # The offline file keeps each value as text.
    assert all(str(peak).encode() in content for peak in peaks.values())
    (artifact,) = logged
    assert list(artifact.manifest.entries) == ["vramscope.html"]


def test_a_local_server_of_mlflow_has_every_scalar_and_the_page(trained, tmp_path, started):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: make test-integrations")
    pytest.importorskip("dash")
    from vramscope.integrations.mlflow import MlflowLog

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = [f"--backend-store-uri=sqlite:///{tmp_path}/db", f"--artifacts-destination={tmp_path}/files"]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--port", port, "--workers", "1"]
    with started(
        command, cwd=tmp_path, stderr=None, env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    ) as server:
        until = time.monotonic() + 200
        while True:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < until
            try:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                    break
            except OSError:
                time.sleep(0.5)
        mlflow.set_tracking_uri(f"http://127.0.0.1:{port}")
        with mlflow.start_run() as run:
            peaks = trained(MlflowLog())
        client = mlflow.MlflowClient()
        history = client.get_metric_history(run.info.run_id, PEAK)
        page = client.download_artifacts(run.info.run_id, "vramscope.html", str(tmp_path))
        content = Path(page).read_bytes()

    assert {each.step: each.value for each in history} == peaks
    assert is_page(content)


def test_a_page_that_cannot_be_made_is_a_warning_and_the_scalars_stay(trained, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from vramscope.errors import MissingExtraError
    from vramscope.integrations import loop
    from vramscope.integrations.tensorboard import TensorBoardLog

    def missing(*_):
        raise MissingExtraError("dash", "dashboard")

    monkeypatch.setattr(loop.registry, "part", missing)
    with pytest.warns(RuntimeWarning, match=r"attaches no page .*pip install"):
        trained(TensorBoardLog(tmp_path / "board"))

    assert not (tmp_path / "board" / "vramscope.html").exists()
