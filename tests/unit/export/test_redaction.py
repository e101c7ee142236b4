"""A redacted export holds none of the program's words, and every figure."""

import builtins
import getpass
import gzip
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import vramscope
from vramscope import export, registry
from vramscope.analysis.folding import fold, origins
from vramscope.analysis.summary import summarize
from vramscope.commands._report_json import as_json
from vramscope.export.redaction import redacted
from vramscope.model.device import Process
from vramscope.model.marks import Category
from vramscope.model.recording import Recording, Run
from vramscope.model.stacks import StackBuilder

ROOT = Path(__file__).parents[3]
RUNS = ["gan-retain-graph", "transformer", "transformer-cuda"]
FORMS = ["csv", "parquet", "memory_viz", "speedscope", "pprof", "flamegraph", "perfetto", "html"]
# Words of Python, of torch and of the formats themselves, which may stay.
PUBLIC = {"forward", "backward", "step", "optimizer", "weight", "bias", "module", "eval", "loss", "data"}
PUBLIC |= {"self", "blocks", "defaultdict", "state", "exp_avg", "exp_avg_sq", "zero_grad", "gradient"}
PUBLIC |= {"local", "global", "context", "attribute", "closure", "frame", "traceback", "graph", "nodes"}
PUBLIC |= {"saved", "variable", "kept_at", "unreachable", *dir(builtins)}
PUBLIC |= {category.name.lower() for category in Category}


def is_own(file: str) -> bool:
    """Whether a file is the program's, and not that of torch, Python, C++ or vramscope."""
    others = ("/torch/", "/lib/python", "/vramscope/vramscope/")
    return file.endswith(".py") and not any(part in file for part in others)


def secrets_of(run) -> set[str]:
    """What nobody may find: paths, their parts that are not torch's, names, commands, hosts."""
    found = {run.name, run.path, str(Path(run.path).resolve()), getpass.getuser(), "/home/", "/root/"}
    public = set(PUBLIC)
    for recording in run.recordings:
        process, stacks = recording.process, recording.stacks
        found |= {process.host, process.command, *process.command.split(), recording.device.uuid}
        for row in range(len(stacks)):
            function, file, _ = stacks.frame(row)
            if is_own(file):
                found |= {file, Path(file).stem, str(Path(file).parent), function}
            else:
                public.add(function)
                found.add(str(Path(file).parents[-2]) if file.count("/") > 3 else "")
        found |= {name for name in recording.holders.names if name.isidentifier() and len(name) > 4}
        parts = {part for name in recording.labels.names for part in re.split(r"[.\s]", name)}
        found |= {part for part in parts if not part.isdigit()}  # of shapes: sizes have the same numbers
    nodes_of_torch = {text for text in found if re.fullmatch(r"\w+Backward\d+|AccumulateGrad", text)}
    return {text for text in found - public - nodes_of_torch if len(text) > 3 and text[0] != "<"}


def bytes_of(files) -> bytes:
    """The content of the files, unpacked, and their names."""
    parts = []
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            content = json.dumps(pq.read_table(file).to_pylist(), default=str).encode()
        elif file.suffix == ".html":
            # plotly.js is in every page, packed: searching it takes longer than all the rest.
            content = re.sub(rb'(?s)id="plotly">.*?</script>', b"", content)
        elif content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        parts += [content, file.name.encode()]
    return b"\0".join(parts)


@cache
def empty_page(write, folder: Path) -> bytes:
    """The page of no run: its style sheet and its own words are in every page."""
    return bytes_of(write(Run("run", "run", (Recording(),)), folder / "empty"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RUNS)
def test_no_word_of_the_program_is_in_any_byte_of_a_redacted_export(name, form, tmp_path, tmp_path_factory):
    if form == "perfetto":
        pytest.importorskip("perfetto")
    if form == "html":
        pytest.importorskip("dash")
    run = vramscope.load(ROOT / "sample_traces" / name)
    write = registry.part(export, export.Export, form).write
    content = bytes_of(write(redacted(run), tmp_path / "out"))
    secrets = secrets_of(run)
    if form == "html":
        secrets = {
            text for text in secrets if not _has(empty_page(write, tmp_path_factory.getbasetemp()), text)
        }

    assert len(secrets) > 10
    assert [text for text in sorted(secrets) if _has(content, text)] == []


def _has(content: bytes, text: str) -> bool:
    """Whether *text* is there as a whole word."""
    return re.search(rb"(?<![\w])" + re.escape(text.encode()) + rb"(?![\w])", content) is not None


def test_the_words_of_the_user_for_a_run_are_not_kept():
    recording = Recording(process=Process(tags="unannounced-model"))

    assert redacted(Run("run", "run", (recording,))).recordings[0].process.tags == ""


@pytest.mark.parametrize("name", RUNS)
def test_the_words_are_found_where_nothing_is_redacted(name, tmp_path):
    run = vramscope.load(ROOT / "sample_traces" / name)
    written = registry.part(export, export.Export, "csv").write(run, tmp_path / "out")
    content = bytes_of(written)

    assert sum(_has(content, text) for text in secrets_of(run)) > 10


def figures(value):
    """The numbers of a report, and the words that are codes, in their places."""
    codes = ("kind", "severity", "cause", "category", "phase", "source", "code")
    if isinstance(value, dict):
        return {
            name: figures(each) for name, each in value.items() if not isinstance(each, str) or name in codes
        }
    return (
        [figures(each) for each in value if not isinstance(each, str)] if isinstance(value, list) else value
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_figure_of_the_report_stays(name):
    run = vramscope.load(ROOT / "sample_traces" / name)
    before, after = (
        as_json([summarize(recording) for recording in each.recordings]) for each in (run, redacted(run))
    )

    assert figures(after["recordings"]) == figures(before["recordings"])
    bytes_of_findings = [
        [(each["kind"], each["cause"], each["bytes"], each["bytes_per_step"]) for each in found["findings"]]
        for found in (before, after)
    ]
    assert bytes_of_findings[0] == bytes_of_findings[1]


MINE = "/home/alice/secret/"
PLACES = [
    # who made it, by path alone; what may be read of it afterwards
    (MINE + "train.py", "step_of_alice", None),
    (MINE + "pytorch/torch/nn/modules/linear.py", "forward", "/torch/nn/modules/linear.py"),
    ("/tmp/torch/torchinductor_alice/ab/secret.py", "call", None),
    (MINE + ".venv/lib/python3.11/site-packages/torch/optim/adam.py", "_init_group", "torch/optim/adam.py"),
    (MINE + ".venv/lib/python3.11/site-packages/alices_nets/layers.py", "forward", None),
    (MINE + ".venv/lib/python3.11/site-packages/alices_nets/secret/layers.py", "forward", None),
    (MINE + ".venv/lib/python3.11/site-packages/alices_nets/secret/call.py", "inner", None),
    ("/usr/lib/python3.11/runpy.py", "_run_code", "/lib/python3/runpy.py"),
    ("<frozen runpy>", "_run_code", "<frozen runpy>"),
    ("<frozen secret.nets>", "run", None),
    ("<attrs generated init secret.Alice>", "__init__", None),
    ("<@beartype(secret.alice) at 0x7f>", "alice", None),
    ("<eval_with_key>.3", "forward", None),
    (MINE + "kernels/attention.cu", "void secret::attention<c10::Half>(at::Tensor const&)", None),
    ("??", "alices_kernel(at::Tensor const&, at::Tensor)", "??"),
    ("??", "at::Tensor at::_sum_to<c10::SymInt>(at::Tensor, bool)", "at::Tensor at::_sum_to<c10::SymInt>"),
    ("??", "torch::autograd::CppNode<secret::Alice>::apply()", "??"),
    ("??", "_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault"),
    (MINE + "bin/alice", "<module>", None),
]


def test_every_frame_stays_that_of_its_author_and_lines_read_the_same_calls():
    builder = StackBuilder()
    leaves = []
    for file, function, _ in PLACES:
        leaves.append(builder.push(builder.push(0, "main", MINE + "train.py", 7), function, file, 3))
    run = Run("run", "run", (Recording(stacks=builder.build()),))
    before, after = run.recordings[0].stacks, redacted(run).recordings[0].stacks
    folded = [fold(stacks) for stacks in (before, after)]
    texts = [[row.index(name) for name in row] for row in ([each.via[i] for i in leaves] for each in folded)]
    words = "\n".join(after.strings)

    assert origins(after)[after.file].tolist() == origins(before)[before.file].tolist()
    assert (folded[1].of[leaves] > 0).tolist() == (folded[0].of[leaves] > 0).tolist()
    assert texts[1] == texts[0]
    assert re.findall("alice|secret", words) == []
    assert [kept for _, _, kept in PLACES if kept and kept not in words] == []


def test_the_command_redacts(tmp_path):
    command = [sys.executable, "-m", "vramscope", "export", "sample_traces/transformer", "--redact"]
    output = tmp_path / "out.txt"
    subprocess.run(
        [*command, "--to", "flamegraph", "--output", output],
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    text = output.read_text()

    assert "torch/nn/modules" in text
    assert "transformer.py" not in text.replace("torch/nn/modules/transformer.py", "")
    assert "file1.py" in text
