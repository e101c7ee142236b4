"""What would have helped a run that ran out of memory, as a replay shows it, and the command to try."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vramscope
from vramscope.analysis.oom import message_of
from vramscope.analysis.oom.remedies import remedies
from vramscope.model.device import Device, Process
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

MIB = 1 << 20
MESSAGE = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 192.00 MiB. GPU 0 has a total capacity of "
    "79.65 GiB of which 77.74 GiB is free. Including non-PyTorch memory, this process has 1.91 GiB memory in "
    "use. 1.43 GiB allowed; Of the allocated memory 1.19 GiB is allocated by PyTorch, and 237.82 MiB is "
    "reserved by PyTorch but unallocated."
)


def in_pieces(command: str) -> Recording:
    """A device of 400 MiB: 60 MiB of each of four segments are in use; 110 MiB in one piece are not free."""
    bases = [i << 32 for i in range(1, 5)]
    rows = [(act, base, 100 * MIB) for base in bases for act in (Action.SEGMENT_ALLOC, Action.ALLOC)]
    rows += [
        (act, base, 100 * MIB) for base in bases for act in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    ]
    rows += [(Action.ALLOC, base, 60 * MIB) for base in bases]
    rows.append((Action.OOM, 0, 110 * MIB))
    action, address, size = (np.array(column) for column in zip(*rows, strict=True))
    trace = Trace.of(
        action=action, address=address, size=size, block_size=size, time_ns=np.arange(len(rows)) + 1
    )
    device = Device(kind="cuda", name="GPU", total_bytes=400 * MIB)
    return Recording(trace=trace, device=device, process=Process(torch="2.13.0", command=command))


def test_a_setting_whose_replay_serves_the_request_comes_first_with_its_command() -> None:
    found = remedies(in_pieces("train.py --name 'a b'"))
    first = found.remedies[0]

    assert first.is_replayed
    assert "expandable_segments:True" in first.how
    assert found.command == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py --name 'a b'"


def test_without_a_setting_that_helps_the_command_stays_as_it_was() -> None:
    pieces = in_pieces("python -m train")
    is_last = pieces.trace.action == Action.OOM
    size = np.where(is_last, 300 * MIB, pieces.trace.size)
    trace = replace(pieces.trace, size=size, block_size=size)
    found = remedies(replace(pieces, trace=trace))

    assert not [each for each in found.remedies if each.is_replayed]
    assert found.no_setting
    assert found.command == "python -m train"


def test_a_dry_run_is_run_dry_again_for_the_card_and_the_bytes_it_had() -> None:
    predicted = replace(in_pieces("train.py 64"), source="predicted")
    small = replace(predicted, device=replace(predicted.device, name="RTX 4090"))
    # What torch calls the total of this card, in bytes.
    whole = replace(predicted, device=Device(kind="cuda", name="RTX 4090", total_bytes=25_232_932_864))

    conf = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    card = "vramscope predict --card 'RTX 4090'"
    assert remedies(small).command == f"{conf} {card} --capacity {400 * MIB}B train.py 64"
    assert remedies(whole).command.endswith(f"{card} train.py 64")


def test_a_dry_run_is_run_again_with_its_options(tmp_path: Path) -> None:
    """The recording has them: what the printed command makes is the same recording again."""
    torch = pytest.importorskip("torch")

    def program() -> None:
        torch.nn.Linear(64, 64, device="cuda")(torch.randn(8, 64, device="cuda")).sum().backward()

    vramscope.predict(program, steps=5, ranks=2, as_cuda=True, directory=tmp_path / "run")
    vramscope.predict(program, directory=tmp_path / "usual")
    made, usual = (vramscope.load(tmp_path / name).recordings[0] for name in ("run", "usual"))
    full = in_pieces("train.py 64")
    again = replace(full, source="predicted", process=replace(full.process, dry_run=made.process.dry_run))

    assert " --steps 5 --ranks 2 --as-cuda train.py 64" in remedies(again).command
    assert usual.process.dry_run == ""


def test_the_figures_of_torchs_message_are_read_and_only_for_its_own_request() -> None:
    found = message_of(MESSAGE, 192 * MIB)

    assert found is not None
    assert found.requested_bytes == 192 * MIB
    assert abs(found.known["limit"] / MIB - 1.43 * 1024) < 0.01
    assert abs(found.known["unallocated"] / MIB - 237.82) < 0.01
    assert message_of(MESSAGE, 300 * MIB) is None
    assert message_of("ValueError: no", 192 * MIB) is None
