"""The table of memory_summary(): current and peak totals, to the unit shown."""

from pathlib import Path

import captures
import pytest

from vramscope.analysis import analyses
from vramscope.errors import FormatError
from vramscope.formats.log import read, sniff
from vramscope.loading import HEAD_BYTES, load
from vramscope.model.recording import Recording, Run

SAMPLE = captures.OTHERS / "memory_summary_t2x_l4.txt"
KIB, MIB = 2**10, 2**20
METRICS = {
    "Allocated memory": ("512 KiB", "900 MiB"),
    "Active memory": ("768 KiB", "950 MiB"),
    "Requested memory": ("500 B", "880 MiB"),
    "GPU reserved memory": ("2048 KiB", "1 GB"),
    "Non-releasable memory": ("1280 KiB", "64 MiB"),
}


def table(
    metrics: dict[str, tuple[str, str]] = METRICS, device: int = 0, ooms: int = 0, retries: int = 0
) -> str:
    lines = [
        f"|                  PyTorch CUDA memory summary, device ID {device}                 |",
        f"|            CUDA OOMs: {ooms}            |        cudaMalloc retries: {retries}         |",
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |",
    ]
    for name, (now, peak) in metrics.items():
        lines.append(f"| {name:21} | {now:>10} | {peak:>10} |      1 MiB |      0 B   |")
        lines.append(f"|       from large pool | {'7 B':>10} | {'8 B':>10} |      1 MiB |      0 B   |")
    return "\n".join(
        [*lines, "| Allocations           |     387    |     387    |     387    |       0    |", ""]
    )


def opened(folder: Path, text: str) -> Run:
    path = folder / "summary.txt"
    data = text.encode()
    path.write_bytes(data)
    assert sniff(data[:HEAD_BYTES], path)
    return read(path)


def only(run: Run) -> Recording:
    (recording,) = run.recordings
    return recording


def quantities(of: dict[str, int]) -> list[int]:
    return [of[name] for name in ("requested", "allocated", "active", "reserved")]


def test_current_and_peak_totals_are_those_of_the_table(tmp_path):
    recording = only(opened(tmp_path, table(device=3, ooms=2, retries=5)))
    totals, peak = recording.timeline(), recording.peak()

    assert recording.device.index == 3
    assert quantities({name.removesuffix("_bytes"): getattr(totals, name)[-1] for name in totals.DTYPES}) == [
        500,
        512 * KIB,
        768 * KIB,
        2 * MIB,
    ]
    assert [high.n_bytes for high in (peak.requested, peak.allocated, peak.active, peak.reserved)] == [
        880 * MIB,
        900 * MIB,
        950 * MIB,
        1024 * MIB,
    ]
    assert [(note.code, note.value) for note in recording.notes if note.value] == [
        ("non_releasable", 1280 * KIB),
        ("ooms", 2),
        ("retries", 5),
    ]
    assert {"totals_only", "no_layout"} <= {note.code for note in recording.notes}


def test_a_table_of_an_older_torch_has_no_requested_bytes(tmp_path):
    older = {name: cells for name, cells in METRICS.items() if not name.startswith("Requested")}
    recording = only(opened(tmp_path, table(older)))

    assert recording.timeline().requested_bytes[-1] == 768 * KIB
    assert "no_requested" in {note.code for note in recording.notes}


def test_tables_in_a_log_follow_one_another_by_device(tmp_path):
    grown = {**METRICS, "Allocated memory": ("600 KiB", "900 MiB")}
    text = f"epoch 1\n{table()}\nepoch 2\n{table(grown)}\n{table(device=1)}"
    first, second = opened(tmp_path, text).recordings

    assert [first.timeline().allocated_bytes[-1], second.timeline().allocated_bytes[-1]] == [
        600 * KIB,
        512 * KIB,
    ]
    assert first.fragmentation().churn.n_retries == 0


def test_what_a_windows_shell_wrote_is_read(tmp_path):
    path = tmp_path / "summary.txt"
    data = table(device=3).encode("utf-16")
    path.write_bytes(data)

    assert sniff(data[:HEAD_BYTES], path)
    assert only(read(path)).device.index == 3


def test_every_analysis_answers(tmp_path):
    recording = only(opened(tmp_path, table()))

    for analysis in analyses().values():
        result = analysis.run(recording)
        assert analysis.findings is None or analysis.findings(result) is not None


@pytest.mark.parametrize("length", range(80, 700, 51))
def test_a_table_cut_before_its_reserved_memory_is_refused(tmp_path, length):
    whole = table()
    assert length < whole.index("GPU reserved")

    path = tmp_path / "summary.txt"
    path.write_text(whole[:length])
    with pytest.raises(FormatError, match=r"summary\.txt: .*no figure of memory"):
        read(path)


def test_numbers_beyond_reason_are_bounded(tmp_path):
    huge = dict.fromkeys(METRICS, ("9999999999999999999 PiB", "9999999999999999999 PiB"))

    assert only(opened(tmp_path, table(huge))).peak().allocated.n_bytes <= 1 << 56


def test_a_text_without_a_table_is_refused(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("nothing")

    with pytest.raises(FormatError, match="no figure of memory"):
        read(path)


def test_pending_memory_makes_no_peak_that_never_was(tmp_path):
    waiting = {**METRICS, "Allocated memory": ("100 MiB", "100 MiB"), "Active memory": ("190 MiB", "190 MiB")}
    peak = only(opened(tmp_path, table(waiting))).peak()

    assert (peak.allocated.n_bytes, peak.active.n_bytes) == (100 * MIB, 190 * MIB)


@pytest.mark.parametrize(
    "data", [b"", b"| Allocated memory |", b"memory summary", b"\0PyTorch CUDA memory summary"]
)
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x.txt"))


def test_a_real_table_has_its_numbers():
    if not SAMPLE.exists():
        pytest.skip("no shared snapshots")
    recording = only(load(SAMPLE))
    totals = recording.timeline()

    assert totals.allocated_bytes[-1] == totals.active_bytes[-1] == totals.requested_bytes[-1] == 14324 * MIB
    assert totals.reserved_bytes[-1] == recording.peak().reserved.n_bytes == 14586 * MIB
    assert ("non_releasable", 267624 * KIB) in [(note.code, note.value) for note in recording.notes]
