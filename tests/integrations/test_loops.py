"""Loops of one's own and of accelerate: what they log are the peaks of their steps."""

import pytest

torch = pytest.importorskip("torch")

from vramscope.errors import UsageError  # noqa: E402
from vramscope.integrations.loop import VramscopeHandler  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_tensors_only")
SIZES = (4, 60, 8, 100, 30, 2, 90, 16)


def net_and_optimizer():
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
    return net, torch.optim.Adam(net.parameters())


def steps_of(recording):
    (found,) = recording.recorder.load().recordings
    return found.summary().steps


def trained(handler=None):
    """The losses of a training, recorded or not."""
    net, optimizer = net_and_optimizer()
    losses = []
    for size in SIZES:
        loss = net(torch.ones(16 * size, 128)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if handler is not None:
            handler.step()
    return losses


def test_a_handler_logs_the_peaks_of_the_steps_since_the_log_before(tmp_path):
    logged = {}
    handler = VramscopeHandler(
        tmp_path / "run",
        log=lambda found, step: logged.update({step: found}),
        every=2,
        total_steps=len(SIZES),
        tags=["fp8", "big, fp8\tüber"],
        device="simulated",
        quiet=True,
    )
    with handler:
        losses = trained(handler)
    steps = steps_of(handler.recording)
    (recording,) = handler.recording.recorder.load().recordings

    assert recording.process.tags == "fp8 big über"
    assert len(steps) == recording.process.total_steps == len(SIZES)
    assert {step: found["vram/peak_allocated_bytes"] for step, found in logged.items()} == {
        at: max(step.allocated_bytes for step in steps[at - 2 : at]) for at in (2, 4, 6, 8)
    }
    assert losses == trained()


def test_steps_that_cannot_be_expected_are_refused(tmp_path):
    recorder = VramscopeHandler(tmp_path / "run", device="simulated", quiet=True).recording.recorder
    for wrong in (0, -5, 1.5, "ten", True):
        with pytest.raises(UsageError, match="expect_steps"):
            recorder.expect_steps(wrong)


def test_a_handler_that_would_never_log_is_refused():
    with pytest.raises(UsageError, match="every=0"):
        VramscopeHandler(every=0)


def test_a_tracker_of_accelerate_adds_the_scalars_for_the_trackers_after_it(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate: make test-integrations")
    from accelerate.tracking import GeneralTracker

    from vramscope.integrations.accelerate import VramscopeTracker

    class Kept(GeneralTracker):
        name = "kept"
        requires_logging_directory = False
        tracker = None

        def __init__(self):
            super().__init__()
            self.rows = []

        def store_init_configuration(self, values):
            pass

        def log(self, values, step=None, **_):
            self.rows.append((step, dict(values)))

    def train(trackers):
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True, log_with=trackers, gradient_accumulation_steps=2)
        accelerator.init_trackers("project", config={})
        net, optimizer = accelerator.prepare(*net_and_optimizer())
        losses = []
        for number, size in enumerate(SIZES):
            with accelerator.accumulate(net):
                loss = net(torch.ones(16 * size, 128)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if accelerator.sync_gradients:
                accelerator.log({"loss": losses[-1]}, step=(number + 1) // 2)
        accelerator.end_training()
        return losses

    ours, kept = VramscopeTracker(tmp_path / "run", device="simulated", quiet=True), Kept()
    recorded = train([ours, kept])
    steps = steps_of(ours.recording)

    assert [step for step, _ in kept.rows] == [1, 2, 3, 4]
    assert [row["vram/peak_allocated_bytes"] for _, row in kept.rows][1:] == [
        step.allocated_bytes for step in steps[1:]
    ]
    assert len(steps) == 4
    assert recorded == train([])


def test_a_tracker_that_accelerate_did_not_begin_says_how_to(tmp_path, caplog):
    pytest.importorskip("accelerate", reason="needs accelerate: make test-integrations")
    from vramscope.integrations.accelerate import VramscopeTracker

    # What accelerate 1.1 does after init_trackers("project"): the first call is that of a log.
    tracker = VramscopeTracker(tmp_path / "run", device="simulated", quiet=True)
    tracker.log({}, step=1)
    tracker.log({}, step=2)
    tracker.finish()

    assert [record.message.count("config={}") for record in caplog.records] == [1]
