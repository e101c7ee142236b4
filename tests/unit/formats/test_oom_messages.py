"""Messages of out-of-memory errors: what each of torch's wordings says, and no more."""

import re
from pathlib import Path

import captures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope import cli
from vramscope.analysis import analyses
from vramscope.analysis.oom import ANALYSIS
from vramscope.errors import FormatError
from vramscope.formats.log import read, sniff
from vramscope.loading import HEAD_BYTES, load
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Recording, Run
from vramscope.model.trace import Action

SAMPLE = captures.OTHERS / "oom_messages.txt"
MIB, GIB = 2**20, 2**30

OLDEST = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 10.75 GiB total capacity; "
    "9.50 GiB already allocated; 18.25 MiB free; 512.00 MiB cached)"
)
OLD = (
    "CUDA out of memory. Tried to allocate 62.00 MiB (GPU 0; 15.75 GiB total capacity; "
    "14.50 GiB already allocated; 9.75 MiB free; 15.25 GiB reserved in total by PyTorch)"
)
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 900.00 MiB.\n"
    "GPU 2 has a total capacity of 79.25 GiB of which 679.50 MiB is free.\n"
    "Including non-PyTorch memory, this process has 72.50 GiB memory in use. "
    "Process 42728 has 3.75 GiB memory in use. Process 49892 has 2.00 GiB memory in use. 40.00 GiB allowed; "
    "Of the allocated memory 71.50 GiB is allocated by PyTorch, with 2.25 GiB allocated\n"
    "in private pools (e.g., CUDA Graphs), and 1.25 GiB is reserved by PyTorch but unallocated. If reserved"
)
WARNED = (
    "[W903 13:41:51.709566905 CUDACachingAllocator.cpp:3934] memory allocation failed with OOM on device 3 "
    "while trying to allocate 42949672961 bytes (free: 33136967680, total: 33668857856).\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 GiB. "
    "GPU 3 has a total capacity of 31.36 GiB"
)
OF_NEW = (2, 900 * MIB, 71.5 * GIB, 72.75 * GIB, 79.25 * GIB, 679.5 * MIB)
SAID = [
    (OLDEST, (1, 20 * MIB, 9.5 * GIB, 10 * GIB, 10.75 * GIB, 18.25 * MIB)),
    (OLD, (0, 62 * MIB, 14.5 * GIB, 15.25 * GIB, 15.75 * GIB, 9.75 * MIB)),
    (NEW, OF_NEW),
    (NEW.replace("capacity", "capacty"), OF_NEW),
    (NEW.replace("CUDA out", "HIP out"), OF_NEW),
]
"""Device, bytes asked for, allocated, reserved, of the device, free on it."""
ALLOWED = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB (GPU 0; 11.75 GiB total "
    "capacity; 4.70 GiB already allocated; 6.75 GiB free; 4.77 GiB allowed; 4.74 GiB reserved in total by "
    "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"
)
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 9.50 GiB, other allocations: 17.50 GiB, max "
    "allowed: 27.25 GiB). Tried to allocate 292.50 MiB on private pool. Use "
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations"
)
XPU = (
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of "
    "15.00 GiB. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch"
)
_FREE_OF_LIMITS = NEW.replace(" 40.00 GiB allowed;", "")


def but(text: str, *changes: tuple[str, str]) -> str:
    """*text* with words exchanged, each of which is in it."""
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


CAUSES = [
    (OLDEST, "fragmentation"),
    (but(OLDEST, ("512.00 MiB cached", "12.00 MiB cached"), ("9.50 GiB al", "10.50 GiB al")), "capacity"),
    (but(OLD, ("14.50 GiB already", "9.50 GiB already")), "fragmentation"),
    (but(OLD, ("15.25 GiB reserved", "0.75 GiB reserved"), ("14.50 GiB al", "0.50 GiB al")), "outside_torch"),
    (
        but(_FREE_OF_LIMITS, ("71.50 GiB is", "61.50 GiB is"), ("72.50 GiB memory", "63.25 GiB memory")),
        "other_process",
    ),
    (but(_FREE_OF_LIMITS, ("679.50 MiB is free", "30.00 GiB is free")), "unknown"),
    (ALLOWED, "limit"),
    (XPU, "unknown"),
    (MPS, "capacity"),
]


def opened(folder: Path, text: str) -> Run:
    path = folder / "job.log"
    data = text.encode()
    path.write_bytes(data)
    assert sniff(data[:HEAD_BYTES], path)
    return read(path)


def only(run: Run) -> Recording:
    (recording,) = run.recordings
    return recording


def findings_of(recording: Recording) -> list[tuple[str, int]]:
    return [(note.code, note.value) for note in recording.notes if note.value]


@pytest.mark.parametrize(("text", "said"), SAID)
def test_each_wording_says_what_was_asked_for_and_what_there_was(tmp_path, text, said):
    device, asked, allocated, reserved, total, free = said
    recording = only(opened(tmp_path, f"Traceback (most recent call last):\n{text}\n"))
    totals, counters = recording.timeline(), recording.counters
    (event,) = (recording.trace.action == Action.OOM).nonzero()[0]

    assert (recording.device.index, recording.device.total_bytes) == (device, total)
    assert recording.trace.size[event] == asked
    assert (totals.allocated_bytes[event], totals.reserved_bytes[event]) == (allocated, reserved)
    assert (counters.allocated_bytes[0], counters.reserved_bytes[0]) == (allocated, reserved)
    assert (counters.device_used_bytes[0], counters.device_total_bytes[0]) == (total - free, total)
    assert (recording.marks.kind.tolist(), recording.marks.value.tolist()) == ([MarkKind.OOM], [free])
    failure = recording.oom()
    assert (failure.size_bytes[0], failure.allocated_bytes[0], failure.device_free_bytes[0]) == (
        asked,
        allocated,
        free,
    )


@pytest.mark.parametrize(("text", "cause"), CAUSES)
def test_the_cause_is_given_as_far_as_the_message_goes(tmp_path, text, cause):
    recording = only(opened(tmp_path, text))

    (finding,) = ANALYSIS.findings(recording.oom())

    assert finding.cause == cause, finding.claim


@pytest.mark.parametrize("gigabyte", ["GiB", "GB"])
def test_apples_message_counts_what_lies_outside_of_its_allocator(tmp_path, gigabyte):
    recording = only(
        opened(tmp_path, MPS.replace("GiB", gigabyte).replace("MiB", gigabyte[:-1].replace("G", "M") + "B"))
    )

    (finding,) = ANALYSIS.findings(recording.oom())

    assert finding.n_bytes == 292.5 * MIB
    assert (finding.evidence["allocated"], finding.evidence["own_outside"]) == (9.5 * GIB, 17.5 * GIB)
    assert finding.evidence["device_free"] == 0.25 * GIB
    assert "beside 17.5 GiB of this process outside of the allocator" in finding.claim


def test_more_than_the_device_has_lies_in_the_hosts_memory(tmp_path):
    text = but(OLD, ("GPU 0; 15.75", "GPU 0; 8.00"), ("15.25 GiB reserved", "14.60 GiB reserved"))
    recording = only(opened(tmp_path, text))

    (finding,) = ANALYSIS.findings(recording.oom())

    assert "more than its 8.00 GiB: the driver keeps the rest in the host's memory" in finding.claim


def test_what_has_no_column_is_in_the_notes(tmp_path):
    recording = only(opened(tmp_path, NEW))

    assert findings_of(recording) == [
        ("process_used", 72.5 * GIB),
        ("private_pools", 2.25 * GIB),
        ("limit", 40 * GIB),
        ("other_process", 3.75 * GIB),
        ("other_process", 2 * GIB),
    ]
    assert recording.counters.process_used_bytes.tolist() == [72.5 * GIB]
    assert {"moments_only", "no_layout"} <= {note.code for note in recording.notes}


def test_the_allocators_own_warning_gives_the_numbers_exactly(tmp_path):
    recording = only(opened(tmp_path, WARNED))

    assert (recording.device.index, recording.device.total_bytes) == (3, 33668857856)
    assert recording.oom().size_bytes.tolist() == [42949672961]
    assert recording.oom().device_free_bytes.tolist() == [33136967680]
    assert ("truncated", 1) in findings_of(recording)


def test_a_warning_of_another_size_is_of_another_allocation(tmp_path):
    recording = only(opened(tmp_path, WARNED.replace("allocate 40.00 GiB", "allocate 39.00 GiB")))

    assert recording.oom().size_bytes.tolist() == [39 * GIB]


def test_several_messages_of_one_device_follow_one_another(tmp_path):
    later = OLD.replace("14.50 GiB already", "3.00 GiB already").replace("15.25", "4.00")
    recording = only(opened(tmp_path, f"{OLD}\n\nretry\n\n{later}\n"))
    failures = recording.oom()

    assert failures.allocated_bytes.tolist() == [14.5 * GIB, 3 * GIB]
    assert failures.reserved_bytes.tolist() == [15.25 * GIB, 4 * GIB]
    assert recording.peak().allocated.n_bytes == 14.5 * GIB
    assert recording.fragmentation().churn.n_retries == 0


def test_a_message_repeated_in_a_row_counts_once(tmp_path):
    assert len(only(opened(tmp_path, f"ERROR {OLD}\n\nTraceback\n{OLD}\n")).oom()) == 1


def test_ranks_and_devices_are_recordings_of_their_own(tmp_path):
    text = f"[rank5]: {OLDEST}\n[rank0]: torch.{OLD}\n[default4]:[rank4]: {OLD}\n{NEW}\n"
    places = [(r.process.rank, r.device.index) for r in opened(tmp_path, text).recordings]

    assert places == [(0, 0), (0, 2), (4, 0), (5, 1)]


def test_a_message_at_the_end_of_a_long_log_is_found(tmp_path):
    log = "step 17, loss 0.1\n" * 20_000

    assert len(only(load_text(tmp_path, log + OLD)).oom()) == 1


def load_text(folder: Path, text: str) -> Run:
    path = folder / "long.log"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
@pytest.mark.parametrize("before", ["", "a line that says nothing\n" * 20_000])
def test_what_a_windows_shell_wrote_is_read(tmp_path, encoding, before):
    path = tmp_path / "log.txt"
    path.write_bytes((before + NEW).encode(encoding))

    (recording,) = load(path).recordings
    assert recording.device.index == 2


def test_every_analysis_answers(tmp_path):
    for recording in opened(tmp_path, f"{NEW}\n\n{OLDEST}\n\n{WARNED}").recordings:
        for analysis in analyses().values():
            result = analysis.run(recording)
            assert analysis.findings is None or analysis.findings(result) is not None


@pytest.mark.parametrize("length", range(80, len(NEW), 41))
def test_a_message_cut_anywhere_says_what_it_still_says(tmp_path, length):
    recording = only(opened(tmp_path, NEW[:length]))

    assert recording.oom().size_bytes.tolist() == [900 * MIB]
    assert recording.peak().allocated.n_bytes in (0, 71.5 * GIB)


@settings(max_examples=40, deadline=None)
@given(*[st.integers(0, 1 << 37)] * 4)
def test_any_numbers_come_back_to_two_decimals(tmp_path_factory, asked, allocated, unallocated, free):
    def size(n_bytes: int) -> str:
        """A size in torch's own words (c10/cuda/CUDACachingAllocator.cpp, format_size)."""
        if n_bytes <= 1024:
            return f"{n_bytes} bytes"
        power = 1 if n_bytes <= MIB else 2 if n_bytes <= GIB else 3
        return f"{n_bytes / 1024**power:.2f} {' KMG'[power]}iB"

    text = (
        f"CUDA out of memory. Tried to allocate {size(asked)}. GPU 0 has a total capacity of 99.00 GiB "
        f"of which {size(free)} is free. Of the allocated memory {size(allocated)} is allocated by PyTorch, "
        f"and {size(unallocated)} is reserved by PyTorch but unallocated."
    )
    recording = only(opened(tmp_path_factory.mktemp("any"), text))
    row = recording.oom()

    def is_close(found: int, expected: int) -> bool:
        return abs(found - expected) <= max(1, expected, GIB) * 0.006 and abs(found - expected) <= expected

    assert is_close(row.size_bytes[0], asked)
    assert is_close(row.allocated_bytes[0], allocated)
    assert is_close(row.reserved_bytes[0], allocated + unallocated)
    assert is_close(row.device_free_bytes[0], free)


def test_a_log_that_only_looks_like_one_is_refused(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("CUDA out of memory. Tried to allocate a lot")

    assert not sniff(path.read_bytes(), path)
    with pytest.raises(FormatError, match=r"x\.log: no complete message"):
        read(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"out of memory", b"<html>" + OLD.encode(), b"\0" + OLD.encode(), b'{"a": "' + OLD.encode()],
)
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x.log"))


def test_numbers_and_logs_beyond_reason_take_no_time(tmp_path):
    huge = OLD.replace("14.50 GiB", "9999999999999999999.99 PiB")
    spaces = "CUDA out of memory. Tried to allocate" + " " * 100_000

    assert only(opened(tmp_path, huge)).peak().allocated.n_bytes <= 1 << 50
    assert len(only(opened(tmp_path, spaces * 3 + OLD)).oom()) == 1


def test_all_wordings_that_were_collected_are_understood():
    if not SAMPLE.exists():
        pytest.skip("no shared snapshots")
    paragraphs = [text for text in SAMPLE.read_text().split("\n\n") if "Tried to allocate" in text]
    asked = [re.search(r"Tried to\s+allocate ([\d.]+) (\w)iB", text) for text in paragraphs]
    expected = sorted(float(found[1]) * {"M": MIB, "G": GIB}[found[2]] for found in asked if found)
    recordings = load(SAMPLE).recordings
    sizes = sorted(size for recording in recordings for size in recording.oom().size_bytes.tolist())

    assert len(paragraphs) == len(expected) == 12
    assert sizes == pytest.approx(expected, abs=1)
    assert {recording.device.index for recording in recordings} == {0, 2, 4, 5}


def test_the_collected_messages_of_three_devices_are_read_to_the_last_number():
    if not SAMPLE.exists():
        pytest.skip("no shared snapshots")
    *_, second, fourth, fifth = load(SAMPLE).recordings

    assert second.oom().reserved_bytes.tolist() == [round(38.58 * GIB) + round(850.91 * MIB)]
    assert ("other_process", round(4.08 * GIB)) in findings_of(fourth)
    assert ("private_pools", round(532.00 * MIB)) in findings_of(fifth)
    assert fifth.oom().device_free_bytes.tolist() == [round(5.56 * GIB)]


def test_messages_without_a_clock_tell_of_no_growth_between_them(tmp_path):
    """They may be of several programs, one file or not."""
    text = (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; {} GiB already "
        "allocated; 12.00 MiB free; {} GiB reserved in total by PyTorch)\n\n"
    )
    path = tmp_path / "log.txt"
    path.write_text(text.format("6.00", "6.10") + text.format("2.00", "2.10"))
    (recording,) = load(path).recordings

    assert recording.waterfall().growth.grown == {}


# ------------------------------------------------------------------------ what a message does not contain


def finding_of(tmp_path, text):
    file = tmp_path / "message.log"
    file.write_text(text)
    (recording,) = load(file).recordings
    return recording, ANALYSIS.findings(recording.oom())[-1]


CUT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 116.00 MiB. GPU 0 has a total capacity of "
    "22.05 GiB of which 112.12 MiB is free. Including non-PyTorch memory, this process has 21.92 GiB memory "
    "in use. Of the al"
)


def test_what_a_cut_message_does_not_say_is_unknown_and_nobody_is_blamed_for_it(tmp_path, capsys):
    recording, finding = finding_of(tmp_path, CUT)

    assert cli.main(["report", str(tmp_path / "message.log")]) == 0
    page = capsys.readouterr().out

    assert "what was allocated is not known" in finding.claim
    assert finding.cause == "unknown"
    assert finding.advice is None
    assert "0 B" not in page
    assert "other processes" not in page
    assert "1 messages" not in page
    assert recording.summary().verdicts.missing
    assert cli.main(["check", str(tmp_path / "message.log"), "--max-peak", "1TiB"]) == 3


@pytest.mark.parametrize("unknown", ["17179869184.00 GiB", "16777216.00 TiB", "18446744073709551615 bytes"])
def test_a_value_of_two_to_the_64th_is_unknown(tmp_path, unknown):
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 0 "
        f"bytes is free. Including non-PyTorch memory, this process has {unknown} memory in use. Of the "
        "allocated memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
        "PyTorch but unallocated."
    )
    recording, _ = finding_of(tmp_path, text)
    of_device, _ = finding_of(tmp_path, text.replace("24.00 GiB", unknown))

    assert (recording.counters.process_used_bytes < 0).all()
    assert "process_used" not in {note.code for note in recording.notes}
    assert of_device.device.total_bytes == 0


RUN = (
    "[{0}]\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total "
    "capacity of 22.06 GiB of which 122.44 MiB is free. Process {1} has {2} GiB memory in use. {3}Of the "
    "allocated memory {4} GiB is allocated by PyTorch, and 265.12 MiB is reserved by PyTorch "
    "but unallocated.\n"
)


def test_several_runs_in_one_log_are_several_and_none_is_the_others_neighbor(tmp_path):
    recordings = opened(
        tmp_path, "".join(RUN.format(i, 4711 + 151 * i, 21.93, "", 21.41 - i) for i in range(3))
    ).recordings

    for at, recording in enumerate(recordings):
        codes = {note.code: note.value for note in recording.notes}
        assert codes["several_runs"] == 3
        assert "other_process" not in codes
        assert [finding.cause for finding in recording.findings()] == ["capacity"]
        assert recording.counters.process_used_bytes.tolist() == [round(21.93 * GIB)]
        assert recording.counters.allocated_bytes.tolist() == [round((21.41 - at) * GIB)]


def test_another_process_that_fits_beside_what_is_reserved_is_another(tmp_path):
    recording, finding = finding_of(tmp_path, RUN.format(0, 4711, 15.0, "", 6.0))

    assert {note.code: note.value for note in recording.notes}["other_process"] == 15 << 30
    assert finding.cause in ("other_process", "outside_torch")


def test_nothing_is_advised_that_a_message_cannot_have(tmp_path):
    _, full = finding_of(tmp_path, RUN.format(0, 4711, 21.93, "", 21.41))
    assert cli.main(["fit", str(tmp_path / "message.log")]) == 2
    _, pieces = finding_of(
        tmp_path,
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 0 "
        "bytes is free. Including non-PyTorch memory, this process has 24.00 GiB memory in use. Of the "
        "allocated memory 15.00 GiB is allocated by PyTorch, and 8.00 GiB is reserved by "
        "PyTorch but unallocated.",
    )

    assert "peak page" not in full.advice
    assert "replays this run" not in pieces.advice
    assert pieces.cause == "fragmentation"


def test_a_request_above_the_whole_device_is_called_so(tmp_path):
    _, finding = finding_of(
        tmp_path,
        "CUDA out of memory. Tried to allocate 194.00 GiB. GPU 0 has a total capacity of 79.00 GiB of which "
        "70.00 GiB is free. Including non-PyTorch memory, this process has 9.00 GiB memory in use. Of the "
        "allocated memory 8.00 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch "
        "but unallocated.",
    )

    assert "more than all of the device" in finding.claim


@pytest.mark.parametrize(("word", "tool"), [("CUDA", "nvidia-smi"), ("HIP", "rocm-smi"), ("XPU", "xpu-smi")])
def test_users_are_sent_to_the_tool_of_their_device(tmp_path, word, tool):
    _, finding = finding_of(
        tmp_path,
        f"{word} out of memory. Tried to allocate 192.00 MiB. GPU 3 has a total capacity of "
        "31.89 GiB of which "
        "13.22 GiB is free. Of the allocated memory 10.43 GiB is allocated by PyTorch, and 94.57 MiB is "
        "reserved by PyTorch but unallocated.",
    )

    assert tool in finding.advice
