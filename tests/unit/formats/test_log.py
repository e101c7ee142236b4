"""What a text says of memory is read, whatever stands around it, and nothing that it does not say."""

import gzip
import io
import json
import random
import sqlite3
import zipfile
from pathlib import Path

import pytest

from vramscope.cli import main
from vramscope.errors import FormatError
from vramscope.formats import log
from vramscope.formats.log import lines, patterns, series
from vramscope.loading import discover, load
from vramscope.model.recording import Run

GIB = 1 << 30
SAMPLES = {
    sample["name"]: ("\n".join(sample["text"]), sample["gib"])
    for sample in json.loads(Path(__file__).with_name("log_samples.json").read_text())
}
"""Lines of real programs with other values, and the highest figures in them, by hand."""
PLAIN = "2025-06-09 23:21:02 - INFO - step 12 loss 1.25 lr 1e-4 tokens/s 12345\n"


def highest(run: Run) -> dict[tuple[int, int, str], int]:
    found: dict[tuple[int, int, str], int] = {}
    for recording in run.recordings:
        for name, column in recording.counters.columns():
            place = recording.process.rank, recording.device.index, name.removesuffix("_bytes")
            if name.endswith("_bytes") and column.max(initial=-1) >= 0:
                found[place] = max(found.get(place, 0), int(column.max()))
    return found


def opened(folder: Path, data: str | bytes, name: str = "train.log") -> Run:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return load(path)


def figures(data: bytes) -> set[tuple[int, int, str, int]]:
    """Every figure that a text is read to have."""
    found = log.Figures()
    for _ in log._read_text(io.BytesIO(data), log._TextReader(found, has_document=False)):
        pass
    return {
        (recording.process.rank, recording.device.index, name, int(value))
        for recording in found.recordings()
        for name, column in recording.counters.columns()
        if name.endswith("_bytes")
        for value in column
        if value >= 0
    }


def test_there_are_samples_of_many_programs():
    assert len(SAMPLES) >= 80


def test_every_program_of_the_table_is_in_the_documents():
    origins = {wording.origin for wording in patterns._wordings()}
    origins |= {row[3] for row in patterns.table_rows() if row[0] == "head"}
    own = {"nothing to read", "the driver", "the program", "torch's counters, in words"}

    text = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    assert {origin for origin in origins - own if origin not in text} == set()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_has_the_figures_that_it_has(tmp_path, name):
    text, expected = SAMPLES[name]
    found = highest(opened(tmp_path, text))

    for place in expected:
        for column, gib in place.items():
            if column not in ("rank", "device"):
                assert found[place["rank"], place["device"], column] == pytest.approx(gib * GIB, abs=2), (
                    column
                )


@pytest.mark.parametrize("name", SAMPLES)
def test_a_text_cut_anywhere_has_no_other_figure(name):
    data = SAMPLES[name][0].encode()
    whole = figures(data)
    # What only several figures together tell is less where some of them are cut.
    known = {each[:3] for each in whole if each[2] == "allocated_peak_bytes"} if name == "hf_txt" else set()

    # Every length was tried once; in each run of the tests one in some places is.
    for length in range(len(name), len(data), max(len(data) // 60, 1)):
        assert {each for each in figures(data[:length]) if each[:3] not in known} <= whole, data[:length][
            -80:
        ]


@pytest.mark.parametrize("seed", range(20))
def test_texts_one_after_another_and_in_another_order_have_no_other_figure(seed):
    chance = random.Random(seed)
    names = chance.sample([name for name in SAMPLES if name not in ("hf_txt", "fairseq_log")], 4)
    texts = [SAMPLES[name][0].encode() for name in names]
    alone = set[tuple[str, int]]().union(*({each[2:] for each in figures(text)} for text in texts))

    assert {each[2:] for each in figures((b"\n" + PLAIN.encode()).join(texts))} <= alone
    lines = texts[0].splitlines(keepends=True)
    chance.shuffle(lines)
    assert {each[2:] for each in figures(b"".join(lines))} <= alone


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"mlflow_csv"}))
def test_a_sample_has_the_same_figures_between_other_lines(name):
    text = SAMPLES[name][0]

    assert figures((PLAIN * 3 + text + PLAIN * 3).encode()) == figures(text.encode())


@pytest.mark.parametrize("name", ["cuda_modern", "verl", "smi_table_txt", "async", "dmon_mem_txt"])
def test_it_is_found_in_the_middle_of_a_long_text_and_packed(tmp_path, name):
    text, _ = SAMPLES[name]
    alone = highest(opened(tmp_path, text))
    whole = PLAIN * 30_000 + text + PLAIN * 30_000
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logs/rank0.log", whole)

    assert highest(opened(tmp_path, whole)) == alone
    assert highest(opened(tmp_path, gzip.compress(whole.encode()), "train.log.gz")) == alone
    assert highest(opened(tmp_path, packed.getvalue(), "logs.zip")) == alone
    assert highest(opened(tmp_path, text.replace("\n", "\r\n").encode("utf-16"))) == alone


WORDS = [
    (
        "cuda:1 | alloc 3.5GB | reserved 4.5GB",
        {(0, 1, "allocated_bytes", 3.5), (0, 1, "reserved_bytes", 4.5)},
    ),
    ("VRAM used: 7.5 GB / 24.0 GB", {(0, 0, "device_used_bytes", 7.5)}),
    ("GPU memory usage: 7680/24576 MB", {(0, 0, "device_used_bytes", 7.5)}),
    ("Max CUDA memory allocated was 12 GB", {(0, 0, "allocated_peak_bytes", 12)}),
    ("3: peak_memory_allocated=4294967296 step=3", {(3, 0, "allocated_peak_bytes", 4)}),
    ("| Peak GPU memory (GB) | 12.5 |", {(0, 0, "allocated_peak_bytes", 12.5)}),
    ("torch.cuda.max_memory_reserved() -> 11.25 GiB", {(0, 0, "reserved_peak_bytes", 11.25)}),
    ("Peak VRAM for batch 8: 7.25 GB", {(0, 0, "allocated_peak_bytes", 7.25)}),
    ("| Peak VRAM while training | **4608 / 6144 MiB (75%)** |", {(0, 0, "allocated_peak_bytes", 4.5)}),
    ("Peak memory allocated on cuda:1: 9.75 GB", {(0, 1, "allocated_peak_bytes", 9.75)}),
    ("Peak memory allocated on cuda:1", set()),
    ("GPU memory after step 3: max allocated for 8 samples: unknown", set()),
    (
        "gpu_mem_alloc=5120MiB, gpu_mem_peak=6144MiB",
        {(0, 0, "allocated_bytes", 5), (0, 0, "allocated_peak_bytes", 6)},
    ),
    (
        "GPU memory: Allocated: 10.5GB, Reserved: 12.5GB, Max: 11.5GB",
        {
            (0, 0, "allocated_bytes", 10.5),
            (0, 0, "reserved_bytes", 12.5),
            (0, 0, "allocated_peak_bytes", 11.5),
        },
    ),
    (
        "[rank3]: iter 120: loss 3.2, mem 33.5GiB alloc / 37.0GiB resv",
        {(3, 0, "allocated_bytes", 33.5), (3, 0, "reserved_bytes", 37)},
    ),
    ("step 12 loss 2.1 GPU 1: 11.5GB / 24.0GB", {(0, 1, "device_used_bytes", 11.5)}),
    ("30/250 [00:12<01:20, 2.73it/s, loss=1.23, gpu_mem=7.5G]", {(0, 0, "device_used_bytes", 7.5)}),
    ("loss: 2.1 | VRAM: 21.5 GB | overflow: 0", {(0, 0, "device_used_bytes", 21.5)}),
    ("GPU: NVIDIA RTX 4090, VRAM: 24 GB, GPU memory: 24 GB", set()),
    ("first line\n训练阶段峰值显存占用 (Forward + Backward): 9216 MB", {(0, 0, "allocated_peak_bytes", 9)}),
    ("first line\nGPU内存使用情况: 1536 MB", {(0, 0, "device_used_bytes", 1.5)}),
    (
        "mem: GPU allocated 1,024MiB, cached: 2048 MiB",
        {(0, 0, "allocated_bytes", 1), (0, 0, "reserved_bytes", 2)},
    ),
]


@pytest.mark.parametrize(("line", "said"), WORDS, ids=[line for line, _ in WORDS])
def test_a_program_may_write_names_units_and_separators_as_it_likes(line, said):
    found = {
        (rank, device, name, n_bytes / GIB) for rank, device, name, n_bytes in figures(f"{line}\n".encode())
    }

    assert found == said


def test_steps_and_times_are_those_of_the_lines(tmp_path):
    (first, _) = opened(tmp_path, SAMPLES["titan_log"][0]).recordings

    assert first.steps.index.tolist() == [200, 210]
    assert first.counters.time_ns[-1] == 1750113064970000000
    assert first.sampled_peaks().per_step.reserved_bytes.tolist() == pytest.approx([49.66 * GIB, 51.66 * GIB])


def of_steps(*steps: int, words: str = "step: {} max memory allocated: {} GB\n") -> str:
    return "".join(words.format(step, place + 1) for place, step in enumerate(steps))


ASKED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "22.00 GiB of which 1.00 GiB is free. Process {} has 20.50 GiB memory in use. Of the allocated memory "
    "{} GiB is allocated by PyTorch, and 265.12 MiB is reserved by PyTorch but unallocated.\n"
)
RUNS = {
    "a restart from a checkpoint": (of_steps(1, 2, 3, 4, 2, 3), [4, 6]),
    "three restarts": (of_steps(1, 2, 3, 4, 2, 3, 1, 2, 3, 4, 5), [4, 6, 11]),
    "another attempt of torchrun": (
        of_steps(5) + "[default] will restart worker group\n" + of_steps(6),
        [1, 1],
    ),
    "a failure and the same step": (of_steps(1, 2, 3) + ASKED.format(7, "19.50") + of_steps(3, 4), [19.5, 2]),
    "a step that was left out after a failure": (
        of_steps(1, 2) + ASKED.format(7, "19.50") + of_steps(3),
        [19.5],
    ),
    "a sweep of processes": (
        "".join(ASKED.format(10 + 7 * at, f"1{at}.50") for at in range(3)),
        [10.5, 11.5, 12.5],
    ),
    "epochs that are named": (
        "".join(
            of_steps(10, 20, 30, words=f"Epoch [{at}] step {{}} max memory: {{}} GB data: 1\n")
            for at in range(4)
        ),
        [3],
    ),
    "epochs without a name": (of_steps(*[1, 2, 3] * 4), [12]),
    "a restart in parts of an epoch": (
        "".join(
            f"{{'epoch': {at}, 'vram_allocated': {gb}}}\n"
            for at, gb in ((0.1, 5), (0.25, 6), (0.1, 3), (0.25, 4))
        ),
        [6, 4],
    ),
    "evaluations with steps of their own": (of_steps(10, 20, 1, 2, 30, 40, 1, 2, 50, 60), [10]),
    "two processes in turn": (of_steps(1, 1, 2, 1, 2, 3, 2, 3, 4, 3), [10]),
}
"""Texts, and the highest GiB of each run that they have."""


@pytest.mark.parametrize("name", RUNS)
def test_runs_in_one_text_are_recordings_of_their_own(tmp_path, name):
    text, expected = RUNS[name]
    recordings = opened(tmp_path, text).recordings

    found = [
        max(recording.counters.allocated_bytes.max(), recording.counters.allocated_peak_bytes.max()) / GIB
        for recording in recordings
    ]
    assert found == expected
    assert [recording.process.restarts for recording in recordings] == list(range(len(expected)))
    notes = [[note.text for note in each.notes if note.code == "several_runs"] for each in recordings]
    if len(expected) > 1:
        assert [text.split(":")[0] for (text,) in notes] == [
            f"run {at} of {len(expected)} in this file" for at in range(1, len(expected) + 1)
        ]


def test_ranks_that_restart_in_one_text_have_their_runs_each(tmp_path):
    lines = [
        f"[rank{rank}]: step: {step} max memory allocated: {9 + rank}.5 GB\n"
        for step in (1, 2, 3, 2, 3)
        for rank in (0, 1)
    ]
    recordings = opened(tmp_path, "".join(lines)).recordings

    assert [(each.process.rank, each.process.restarts) for each in recordings] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert [each.steps.index.tolist() for each in recordings] == [[1, 2, 3], [2, 3]] * 2


def test_a_text_of_very_many_runs_is_one(tmp_path):
    (recording,) = opened(tmp_path, of_steps(*[1, 2, 3, 4, 2, 3, 4, 5] * 100)).recordings

    assert recording.counters.allocated_peak_bytes.max() == 800 * GIB


@pytest.mark.exhaustive
def test_ranks_that_are_left_out_of_a_text_are_a_note(tmp_path):
    line = "[rank {}] step: 1 max memory allocated: 5 GB\n"
    whole = opened(tmp_path, "".join(line.format(rank) for rank in range(40)), "few.log")
    most = series._MOST_PLACES
    cut = opened(tmp_path, "".join(line.format(rank) for rank in range(most + 2)), "many.log")

    assert (len(whole.recordings), whole.notes) == (40, ())
    assert len(cut.recordings) == most
    assert [note.code for note in cut.notes] == ["truncated"]
    assert f"more than {most:,} ranks" in cut.notes[0].text


def test_each_series_is_named_with_what_it_counts(tmp_path):
    (recording,) = opened(tmp_path, SAMPLES["verl"][0]).recordings

    texts = [note.text for note in recording.notes if note.code == "series"]
    assert texts[0].startswith("perf/max_memory_allocated_gb of verl: the most that torch had allocated")


@pytest.mark.parametrize(
    ("head", "line", "expected"),
    [
        ("device: cuda:0", "peak memory: 2048 MiB", {(0, 0, "allocated_peak_bytes", 2 << 30)}),
        ("device: cpu", "peak memory: 2048 MiB", set()),
        ("GPU available: False, used: False", "Allocated: 2.00 GB", set()),
        ("device: cuda:0", "Peak memory usage: 12.4MB", set()),
        ("device: cuda:0", "peak CPU memory: 2048 MiB", set()),
    ],
)
def test_a_line_without_a_device_is_of_the_gpu_that_the_log_names(head, line, expected):
    assert figures(f"{head}\n{line}\n".encode()) == expected


def test_memory_of_the_host_and_shares_are_no_figures():
    lines = (
        "total memory: 64 GB RAM",
        "Peak memory usage: 12.4MB",
        "CPU Virtual Memory:  used = 60.13 GB, percent = 11.9%",
        '"system.gpu.0.memoryAllocated": 55.3, "system.gpu.0.memory": 12',
        "gpu_memory_utilization: 0.9",
        "max_gpu_memory: 20 GB",
        "Peak reserved memory % of max memory = 44.379 %.",
        "GPU: Tesla T4. Max memory in use by nobody",
        "estimated memory allocated: 12 GB",
        "average GPU memory allocated: 12 GB; min memory reserved: 3 GB",
        "max memory allocated (GB) 12.5 %",
        "disk allocated: 500 GB, torch 2.9",
        "shared GPU memory used: 3.5 GB",
        "train_mem_gpu_peaked_delta = 1024MB",
    )

    assert figures("\n".join((*lines, "")).encode()) == set()


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, "{" * 1_000_000, "a memory of 1 x " * 300_000, "\x01\x02" * 400_000]
)
def test_hostile_texts_are_refused_in_seconds(tmp_path, text):
    with pytest.raises(FormatError):
        opened(tmp_path, text)


def test_what_is_kept_of_a_text_is_bounded():
    """Whatever it says: samples of many runs and ranks, messages, names."""
    lines = [
        *(f"step: {at % 400} max memory allocated: {at % 77}.5 GB\n" for at in range(40_000)),
        *(ASKED.format(9, f"{at % 20}.{at % 89:02}") for at in range(6_000)),
        *(f"[rank{at}]: GPU memory allocated: {at % 80} GB\n" for at in range(20_000)),
        *(f"GPU: card {at}. Max memory: 14.5 GB.\n" for at in range(3_000)),
    ]
    found = log.Figures()
    for _ in log._read_text(io.BytesIO("".join(lines).encode()), log._TextReader(found, has_document=False)):
        pass
    runs = [run for place in found._places.values() for run in place.runs]

    assert len(runs) <= (1 << 14) + 100
    assert max(len(run.items) for run in runs) <= 1 << 15
    assert max(len(run.most) for run in runs) <= 1000


def test_allocations_of_nsight_systems_are_followed(tmp_path):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        names = "start, globalPid, deviceId, address, bytes, memKind, memoryOperationType"
        database.execute(f"CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({names})")
        pid = 1 << 48 | 12345 << 24
        rows = [
            (1000, pid, 0, 1, 2 * GIB, 2, 0),
            (2000, pid, 0, 2, GIB, 2, 0),
            (2500, pid, 0, 3, 9 * GIB, 1, 0),
            (3000, pid, 0, 1, 2 * GIB, 2, 1),
        ]
        database.executemany("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    database.close()

    (recording,) = load(path).recordings
    assert recording.counters.process_used_bytes.tolist() == [2 * GIB, 3 * GIB, GIB]


REFUSED = [
    (b"\0\0\0\x20ftypmp42" + bytes(200), "a video"),
    (b"PK\x03\x04" + b"\0" * 26 + b"[Content_Types].xml", "a spreadsheet"),
    (b"\x89PNG\r\n\x1a\n" + bytes(50), "a picture"),
    (b"%PDF-1.7 \n", "a PDF"),
    (b"JAVA PROFILE 1.0.2\0", "heap dump of Java"),
    (b"\x7fELF\x02\x01" + bytes(50), "a program"),
    (b"\x93NUMPY\x01\0", "NumPy"),
    (b"\x89HDF\r\n", "HDF5"),
    (b"PAR1....", "Parquet"),
    (b"ARROW1\0\0", "Arrow"),
    (b"\x40\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "safetensors"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "spreadsheet"),
    (b"memray\0\0", "memray"),
    (b"slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "the host's memory"),
    (b"# gpu    pwr  gtemp  mtemp     sm    mem\n# Idx      W      C      C      %      %\n", "dmon -s mu"),
    (b"Time (%),Total Time (ns),Num Calls,Name\n42.1,123456789,512,cudaMalloc\n", "nsys export"),
    (b'{"snapshot":{"meta":{"node_fields":[]}}}', "JavaScript"),
    (b"RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58\n", "without its figures"),
    (b"import torch\nmodel = torch.nn.Linear(1, 1)\n", "source code"),
    (b"epoch 1 loss 2.5\nepoch 2 loss 2.25\n", "memory_summary()"),
    (b"GGUF\x03\0\0\0", "a file of weights"),
    (b"desc: --massif-out-file=x\ncmd: ./a\n", "nothing of a GPU"),
    (b'{"address":"0x7f","type":"STRING"}\n{"address":"0x8f","type":"ARRAY"}\n', "Ruby"),
    (b'{"role":"user","text":"hi"}\n{"role":"bot","text":"hello"}\n', "lines of JSON"),
    (b'{"lr": 0.1, "model": "gpt2"}', "JSON without a figure"),
    (b"<!DOCTYPE html><html><body>Hello</body></html>", "a page of HTML"),
    (b"sepal,petal,species\n1,2,a\n3,4,b\n", "no column names a GPU's memory"),
    (b"Total (MB),Count,Operation\n1234.5,10,[CUDA memcpy Host-to-Device]\n", "traffic"),
    (b"timestamp, utilization.gpu [%]\n2024/01/01 10:00:00.000, 99 %\n", "no column of memory"),
    (bytes(range(128, 256)) * 9, "data of an unknown kind"),
    (gzip.compress(bytes(range(256)) * 500)[:60], "cut or damaged"),
    (b"PK\x05\x06" + bytes(18), "a zip archive"),
    (b'{"$schema":"https://www.speedscope.app/file-format-schema.json"}', "a profile of time"),
]


@pytest.mark.parametrize(("data", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_foreign_file_is_refused_with_what_it_is_and_what_to_do(tmp_path, data, words):
    with pytest.raises(FormatError, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        opened(tmp_path, data, "file.dat")

    assert ";" in str(caught.value)


def test_a_folder_offers_logs_and_no_source_code(tmp_path):
    text = SAMPLES["cuda_modern"][0]
    for name in ("train.log", "train.py", "README.md"):
        (tmp_path / name).write_text(text)
    (tmp_path / "plain.log").write_text(PLAIN)

    assert discover(tmp_path) == [tmp_path / "train.log"]


def test_standard_input_is_reported(monkeypatch, capsys):
    data = SAMPLES["verl"][0].encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    assert main(["report", "--json", "-"]) == 0
    (recording,) = json.loads(capsys.readouterr().out)["recordings"]
    assert recording["peak"]["allocated_bytes"] == round(53.25 * GIB)


def test_two_logs_are_compared_by_their_highest_figures(tmp_path, capsys):
    text = SAMPLES["verl"][0]
    for name, value in (("a.log", "53.25"), ("b.log", "63.25")):
        (tmp_path / name).write_text(text.replace("53.25", value))

    assert main(["diff", "--json", str(tmp_path / "a.log"), str(tmp_path / "b.log")]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (found["peak_a_bytes"], found["peak_b_bytes"]) == (round(53.25 * GIB), round(63.25 * GIB))
    (change,) = found["changes"]
    assert (change["kind"], change["name"], change["bytes"]) == ("total", "allocated peak", 10 * GIB)


def test_words_are_sought_at_once_as_one_by_one():
    chance = random.Random(5)
    parts = ["cuda", "nvidia", "gpu", "device", "using ", "rtx", "a100", "mi300x", "l40s", "mem", "gb", "GiB"]
    parts += [":", "1", "=", " ", "true", "x", "\n", "_", "v10", "h20", "available", "inuse:", "max_ma"]
    found = 0
    for _ in range(3000):
        text = "".join(chance.choice(parts) for _ in range(chance.randrange(1, 8))).lower().encode()
        text = text.rjust(lines._AT_ONCE_BYTES + len(text) // 2 if chance.random() < 0.05 else 0, b".")
        gpus = [at for at in lines._beginnings(lines._GPU_WORDS, text) if lines._GPU.match(text, at)]
        assert gpus == [at for at in range(len(text)) if lines._GPU.match(text, at)]
        words = [at for at in lines._beginnings(lines._WORDS, text) if text.startswith(lines._WORDS, at)]
        assert words == [at for at in range(len(text)) if text.startswith(lines._WORDS, at)]
        found += bool(gpus) + bool(words)
    assert found > 1000


def test_what_a_program_calls_used_is_not_said_to_be_the_devices(tmp_path):
    run = opened(tmp_path, "step 1 VRAM used: 11.5 GB\nstep 2 VRAM used: 12.5 GB\n")

    assert highest(run) == {(0, 0, "device_used"): int(12.5 * GIB)}
    said = " ".join(note.text for note in run.recordings[0].notes)
    assert "used, by the program's words: of the whole device, or by torch alone" in said
    assert "driver" not in said
    assert run.recordings[0].source == "log"


def test_what_another_framework_allocated_is_not_said_to_be_torchs(tmp_path):
    text, _ = SAMPLES["statistics of TensorFlow's allocator"]
    said = " ".join(note.text for note in opened(tmp_path, text).recordings[0].notes)

    assert "InUse of TensorFlow: allocated by its allocator" in said
    assert "torch" not in said


def test_a_name_alone_is_no_statistic_of_an_allocator(tmp_path):
    with pytest.raises(FormatError):
        opened(tmp_path, "pool InUse: 1234567 connections\nMaxInUse: 12345678\nLimit:    123456789012\n")


def test_a_line_of_many_escaped_lines_is_cut_into_them_at_once(tmp_path):
    one = "[rank1]: Tried\\nmemory allocated: 3.5 GB\\n"
    run = opened(tmp_path, one * 20_000)

    assert highest(run) == {(0, 0, "allocated"): int(3.5 * GIB)}
