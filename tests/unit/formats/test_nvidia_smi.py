"""Logs of nvidia-smi as found in the field: the numbers of each device, and nothing beyond them."""

import gzip
import re
from collections import Counter
from pathlib import Path

import captures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.analysis import analyses
from vramscope.cli import main
from vramscope.errors import FormatError
from vramscope.formats import nvidia_smi
from vramscope.formats.nvidia_smi import read, sniff
from vramscope.loading import load
from vramscope.model.recording import Recording, Run

MIB = 2**20
PLAIN = """timestamp, index, name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB]
2026/01/03 15:36:53.507, 0, NVIDIA A100, GPU-aa, 1 %, 1129 MiB, 40960 MiB
2026/01/03 15:36:53.511, 1, NVIDIA A100, GPU-bb, [N/A], 7 MiB, 40960 MiB
2026/01/03 15:36:54.507, 0, NVIDIA A100, GPU-aa, 98 %, 2000 MiB, 40960 MiB
2026/01/03 15:36:54.511, 1, NVIDIA A100, GPU-bb, 0 %, [Not Supported], 40960 MiB
"""


def opened(folder: Path, text: str, encoding: str = "utf-8") -> Run:
    path = folder / "gpu.csv"
    data = text.encode(encoding)
    path.write_bytes(data)
    assert sniff(data[: 1 << 16], path)
    return read(path)


def only(run: Run) -> Recording:
    (recording,) = run.recordings
    return recording


def used_mib(recording: Recording) -> list[int]:
    used = recording.counters.device_used_bytes
    return [n // MIB if n >= 0 else -1 for n in used.tolist()]


def codes(run: Run) -> list[str]:
    return [note.code for note in run.notes]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_each_device_has_its_own_samples_in_any_encoding(tmp_path, encoding, newline):
    run = opened(tmp_path, PLAIN.replace("\n", newline), encoding)
    first, second = run.recordings

    assert (run.name, first.source) == ("gpu", "nvidia-smi")
    assert (first.device.index, first.device.name, first.device.uuid) == (0, "NVIDIA A100", "GPU-aa")
    assert first.device.total_bytes == 40960 * MIB
    assert (used_mib(first), first.counters.utilization_percent.tolist()) == ([1129, 2000], [1, 98])
    assert (used_mib(second), second.counters.utilization_percent.tolist()) == ([7, -1], [-1, 0])
    assert first.counters.time_ns.tolist() == [1767454613507000000, 1767454614507000000]
    assert first.counters.allocated_bytes.tolist() == [-1, -1]
    assert [note.code for note in first.notes] == ["driver_only"]
    assert codes(run) == ["local_time"]


def test_a_zipped_log_opens(tmp_path):
    path = tmp_path / "gpu.csv.gz"
    path.write_bytes(gzip.compress(PLAIN.encode()))

    assert [used_mib(recording) for recording in load(path).recordings] == [[1129, 2000], [7, -1]]


def test_every_analysis_answers_without_events(tmp_path):
    recording = opened(tmp_path, PLAIN).recordings[0]

    for analysis in analyses().values():
        result = analysis.run(recording)
        assert analysis.findings is None or analysis.findings(result) == []


def test_without_units_a_number_is_mebibytes_and_times_with_a_zone_are_exact(tmp_path):
    now = "2025-09-08T17:26:50+08:00"
    run = opened(tmp_path, f"timestamp,gpu,index,memory.used\n{now},3, 0, 4\n{now},7, 0, 5\n")

    assert [recording.device.index for recording in run.recordings] == [3, 7]
    assert [used_mib(recording) for recording in run.recordings] == [[4], [5]]
    assert run.started_ns == 1757323610 * 10**9
    assert codes(run) == []


def test_units_in_the_header_count(tmp_path):
    recording = only(opened(tmp_path, "index, memory.used [KiB], memory.total [GiB]\n0, 2048, 2\n"))

    assert (used_mib(recording), recording.device.total_bytes) == ([2], 2048 * MIB)
    assert recording.counters.time_ns.tolist() == [0]


HEADERLESS = [
    (["2 MiB, 98 MiB", "30 MiB, 70 MiB"], [2, 30], [100, 100]),  # used, free
    (["2 MiB, 100 MiB", "30 MiB, 100 MiB"], [2, 30], [100, 100]),  # used, total
    (["100 MiB, 2 MiB", "100 MiB, 30 MiB"], [2, 30], [100, 100]),  # total, used
    (["2 MiB", "30 MiB"], [2, 30], [-1, -1]),
]


@pytest.mark.parametrize(("cells", "used", "total"), HEADERLESS)
def test_without_a_header_cells_tell_what_they_are(tmp_path, cells, used, total):
    lines = [
        f"2026/04/25 16:06:0{at}.780, {7 + at} %, 0 %, {cell}, 27, 11.64 W\n" for at, cell in enumerate(cells)
    ]
    run = opened(tmp_path, "".join(lines))
    recording = only(run)

    assert used_mib(recording) == used
    assert [n // MIB if n >= 0 else -1 for n in recording.counters.device_total_bytes.tolist()] == total
    assert recording.counters.utilization_percent.tolist() == [7, 8]
    assert codes(run) == ["no_header", "local_time"]


def test_without_used_memory_it_is_what_is_not_free(tmp_path):
    recording = only(opened(tmp_path, "index, memory.total [MiB], memory.free [MiB]\n0, 100 MiB, 60 MiB\n"))

    assert used_mib(recording) == [40]


def test_the_largest_of_several_processes_is_shown_and_the_others_are_noted(tmp_path):
    run = opened(
        tmp_path,
        "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "2026/01/03 15:36:53.507, GPU-a, 11, Xorg, 40 MiB\n"
        "2026/01/03 15:36:53.507, GPU-a, 12, /usr/bin/python, 700 MiB\n"
        "2026/01/03 15:36:54.507, GPU-a, 12, /usr/bin/python, 900 MiB\n",
    )
    recording = only(run)

    assert (recording.process.pid, recording.process.command) == (12, "/usr/bin/python")
    assert [n // MIB for n in recording.counters.process_used_bytes.tolist()] == [700, 900]
    assert used_mib(recording) == [-1, -1]
    assert (recording.notes[0].code, recording.notes[0].value) == ("other_process", 40 * MIB)


def test_a_last_line_cut_short_is_left_out(tmp_path):
    whole = only(opened(tmp_path, "index, memory.used [MiB]\n0, 1129 MiB\n0, 1130 MiB\n"))
    in_a_number = opened(tmp_path, "index, memory.used [MiB]\n0, 1129 MiB\n0, 11")
    in_a_line = opened(tmp_path, "index, memory.used [MiB], power.draw [W]\n0, 1129 MiB, 3 W\n0, 1130 M")

    assert used_mib(whole) == [1129, 1130]
    assert (used_mib(only(in_a_number)), codes(in_a_number)) == ([1129], ["truncated"])
    assert (used_mib(only(in_a_line)), codes(in_a_line)) == ([1129], ["truncated"])


def test_repeated_headers_and_strange_lines_are_left_out(tmp_path):
    head = "index, memory.used [MiB]\n"
    run = opened(tmp_path, f"{head}0, 5 MiB\nUnable to determine the device handle\n{head}0, 6 MiB\n")

    assert used_mib(only(run)) == [5, 6]
    assert [(note.code, note.value) for note in run.notes] == [("skipped", 1)]


amounts = st.lists(st.lists(st.integers(0, 200_000), min_size=3, max_size=3), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(amounts, st.sampled_from(["utf-8", "utf-16"]), st.booleans())
def test_any_log_gives_back_its_numbers(tmp_path_factory, samples, encoding, with_units):
    unit = " MiB" if with_units else ""
    lines = ["index, memory.used [MiB], power.draw [W]"]
    lines += [f"{gpu}, {n}{unit}, 1.0" for sample in samples for gpu, n in enumerate(sample)]
    run = opened(tmp_path_factory.mktemp("any"), "\n".join(lines) + "\n", encoding)

    assert [used_mib(r) for r in run.recordings] == [[sample[gpu] for sample in samples] for gpu in range(3)]


@pytest.mark.parametrize(
    "text",
    [
        "timestamp, memory.used [MiB]\n",
        "timestamp, memory.used [MiB]\n2026",
        "timestamp, memory.used [MiB]\n" + "x" * 100_000,
    ],
)
def test_a_log_without_a_sample_is_refused(tmp_path, text):
    with pytest.raises(FormatError, match=r"gpu\.csv: nvidia-smi wrote no sample"):
        opened(tmp_path, text)


def test_numbers_beyond_reason_and_other_scripts_digits_are_unknown(tmp_path):
    text = (
        "index, memory.used [MiB], pid\n0, 99999999999999999999 MiB, 1\n0, -5 MiB, 1\n\u0663, \u0663 MiB, 1\n"
    )
    run = opened(tmp_path, text)

    assert {n for recording in run.recordings for n in used_mib(recording)} <= {-1, 3}


@pytest.mark.parametrize(
    "data", [b"", b"a,b,c\n1,2,3\n", b"hello, world", b"{}", b"\xff\xfe", b"memory.used"]
)
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x.csv"))


TIMES = ["2925/01/03 15:36:53.507", "1925/01/03 15:36:53.507", "2026/13/03 15:36:53", "x"]


@pytest.mark.parametrize("moment", TIMES)
def test_a_time_that_cannot_be_is_unknown(tmp_path, moment):
    recording = only(opened(tmp_path, f"timestamp, memory.used [MiB]\n{moment}, 5 MiB\n"))

    assert (recording.counters.time_ns.tolist(), used_mib(recording)) == ([0], [5])


def real(name: str) -> Path:
    path = captures.OTHERS / name
    if not path.exists():
        pytest.skip("no shared snapshots")
    return path


def test_a_real_log_has_every_sample():
    path = real("smi_4090_vlm.csv")
    expected = [int(found) for found in re.findall(r", (\d+) MiB", path.read_text())]

    assert len(expected) == 2619
    assert used_mib(only(load(path))) == expected


def test_a_real_log_of_eight_devices_is_taken_apart():
    path = real("smi_h100_multi.csv")
    expected = Counter(int(line.split(",")[1]) for line in path.read_text().splitlines()[1:])
    run = load(path)

    assert {r.device.index: len(r.counters) for r in run.recordings} == expected
    assert {r.device.total_bytes for r in run.recordings} == {81559 * MIB}


def test_a_real_log_without_a_header_tells_used_from_free():
    path = real("smi_headerless.csv")
    pairs = re.findall(r", (\d+) MiB, (\d+) MiB", path.read_text())
    recording = only(load(path))

    assert used_mib(recording) == [int(used) for used, _ in pairs]
    assert recording.device.total_bytes == max(int(used) + int(free) for used, free in pairs) * MIB


def test_every_different_cell_is_understood_once(tmp_path, monkeypatch):
    """A day of eight devices has 600,000 lines, and a few hundred different cells."""
    asked = []
    understood = nvidia_smi._bytes
    monkeypatch.setattr(nvidia_smi, "_bytes", lambda *cell: (asked.append(cell), understood(*cell))[1])
    path = tmp_path / "long.csv"
    lines = [f"2025/01/01 00:00:{row % 60:02d}.000, {1000 + row % 3} MiB, 8000 MiB" for row in range(3000)]
    path.write_text("timestamp, memory.used [MiB], memory.total [MiB]\n" + "\n".join(lines) + "\n")
    (recording,) = nvidia_smi.read(path).recordings

    assert recording.counters.device_used_bytes[:4].tolist() == [
        megabytes << 20 for megabytes in (1000, 1001, 1002, 1000)
    ]
    assert len(recording.counters) == 3000
    # Three of used, one of total, and the empty cells of the two columns that are not there.
    assert len(asked) == 6


def test_a_header_of_a_million_columns_is_no_log(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("memory.used [MiB]" + ",x" * 1_000_000 + "\n" + "1," * 1_000_000 + "1\n")

    with pytest.raises(FormatError, match=r"first line has 1,000,001 columns: this is no log of nvidia-smi"):
        load(path)


def test_a_report_says_when_most_was_used_how_long_it_took_and_how_it_ended(tmp_path, capsys):
    path = tmp_path / "log.csv"
    rows = [("00:00:00", 1000), ("00:00:30", 3000), ("00:02:00", 2000)]
    lines = [f"2025/01/01 {clock}, {used} MiB" for clock, used in rows]
    path.write_text("timestamp, memory.used [MiB]\n" + "\n".join(lines) + "\n")
    main(["report", str(path)])
    page = capsys.readouterr().out

    assert "3 samples, 2.0 min" in page
    (line,) = [line.split() for line in page.splitlines() if line.startswith("device used")]
    assert line == ["device", "used", "2.93", "GiB", "after", "30", "s", "1.95", "GiB"]
