"""Two hundred words and numbers are planted wherever a recording has text; no redacted export has any."""

import base64
import gzip
import re
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vramscope
from vramscope import export, registry
from vramscope.export.redaction import redacted
from vramscope.model.holders import _COLUMNS_OF, _TEXTS, Holders
from vramscope.model.marks import Note
from vramscope.model.stacks import StackBuilder

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "transformer-cuda"
FORMS = ["csv", "parquet", "memory_viz", "speedscope", "pprof", "flamegraph", "perfetto", "html"]
PER_KIND = 5
USER, LINEAR = "/home/you/train.py", "/srv/pytorch/torch/nn/modules/linear.py"
# Where a file of that path came from, by what its path looks like; W is the word.
FILES = (
    "/home/W/train.py",
    "/home/you/pytorch-W/torch/nn/modules/linear.py",
    "/home/you/proj/torch/nn/W.py",
    "/home/you/torch/W/linear.py",
    "/srv/site-packages/torch/optim/W.py",
    "/srv/lib/python3.11/W.py",
    "/srv/lib/python3.12/json/W/decoder.py",
    "/srv/triton/runtime/W.py",
    "/srv/site-packages/W/layers.py",
    "<frozen W>",
    "<frozen importlib.W>",
    "<attrs generated init W.Net>",
    "<ipython-input-3-W>",
    "/tmp/torchinductor_W/ab/cd.py",
    "/srv/bin/W",
    "/srv/train.W",
    "C:\\W\\site-packages\\torch\\nn\\W.py",
    "/srv/W.so",
)
# (file, function)
FUNCTIONS = (
    (USER, "W"),
    (LINEAR, "W"),
    ("/srv/site-packages/torch/_tensor.py", "backward_W"),
    ("<frozen os>", "W"),
    ("<string>", "W"),
    ("/srv/lib/python3.11/json/decoder.py", "W"),
    ("??", "at::native::W(at::Tensor const&)"),
    ("??", "PyW_Init"),
    ("??", "void std::vector<W>::push_back(int)"),
    ("??", "cudaW"),
    ("??", "libc_W"),
    ("/srv/W.cu", "at::cuda::W::getNewWorkspace()"),
)
NAMES = (
    "W",
    "W.weight",
    "gradient of W.0",
    "layers.W.bias",
    "WBackward0",
    "0.W",
    "[W]",
    "held by: W",
    "exp_avg of W",
)
# Each word of a holder: kind, name and owner.
HOLDERS = (
    *("local", "global", "unnamed", "attribute", "key", "item", "closure", "default", "bound"),
    *("kept_at", "limit", "reset", "graph", "hook", "W"),
)


def words():
    """Words that nobody else has, and numbers such as those of telephones."""
    number = 0
    while True:
        number += 1
        yield f"canary{number}zq" if number % 3 else f"4917{number:09d}"


def values(kind, new):
    """The parts of a word of a holder."""
    columns = _COLUMNS_OF.get(kind, ("name", "owner"))
    return [new(f"{column} of {kind} W") if column in _TEXTS else 3 for column in columns]


@pytest.fixture(scope="module")
def planted():
    """The run, and all that was planted in it."""
    run, source, used, kinds = vramscope.load(SAMPLE), words(), [], set()

    def new(template="W"):
        used.append(next(source))
        kinds.add(template)
        return template.replace("W", used[-1])

    recording = run.recordings[0]
    stacks = recording.stacks
    builder = StackBuilder()
    nodes = [0]
    for row in range(1, len(stacks)):
        nodes.append(builder.push(nodes[stacks.parent[row]], *stacks.frame(row)))
    leaves = []
    for _ in range(PER_KIND):
        leaves += [builder.push(0, "call", new(file), 3) for file in FILES]
        leaves += [builder.push(0, new(function), file, 3) for file, function in FUNCTIONS]
    # Every planted stack is that of a block, so that exports of live blocks have it too.
    trace = recording.trace
    chosen = np.array(nodes)[trace.stack_id]
    chosen[np.linspace(0, len(chosen) - 1, 4 * len(leaves)).astype(int)] = leaves * 4
    names = [new(name) for _ in range(PER_KIND) for name in NAMES]

    def renamed(table):
        return replace(
            table, names=tuple(names[at % len(names)] if name else "" for at, name in enumerate(table.names))
        )

    kept = [
        (int(at), int(trace.address[at]), [(kind.replace("W", new()), *values(kind, new))])
        for at, kind in enumerate(HOLDERS * PER_KIND)
    ]
    note = Note(new("note code W"), new("note W"), 1, new("stream W"))
    process = replace(
        recording.process,
        **{
            name: new(f"{name} W")
            for name in ("host", "command", "job", "tags", "launcher", "python", "driver")
        },
        torch=new("2.13.0+W"),
        mesh={new("dimension W"): 2},
        allocator={new("setting W"): "1", "PYTORCH_CUDA_ALLOC_CONF": new("backend:W")},
    )
    recording = replace(
        recording,
        source=new("source W"),
        process=process,
        device=replace(recording.device, name=new("NVIDIA W"), uuid=new("GPU-W"), kind=new("kind W")),
        trace=replace(trace, stack_id=chosen.astype(trace.stack_id.dtype)),
        stacks=builder.build(),
        labels=renamed(recording.labels),
        marks=renamed(recording.marks),
        phases=renamed(recording.phases),
        holders=Holders.of_paths(kept),
        notes=(note,),
    )
    run = replace(
        run,
        name=new("run W"),
        path=new("/srv/W"),
        error=new("error W"),
        notes=(note,),
        recordings=(recording,),
    )
    assert len(used) >= 200
    assert len(kinds) >= 40
    return run, used


def blobs(data, depth=3):
    """The bytes, and what is packed in them."""
    yield data.lower()
    yield data.replace(b"\0", b"").lower()
    if not depth:
        return
    for pattern, unpack in ((rb"\x1f\x8b\x08", gzip_at), (rb"x[\x01\x5e\x9c\xda]", zlib_at)):
        for found in re.finditer(pattern, data) if depth == 3 or data[:2] in (b"\x1f\x8b", b"x\x9c") else ():
            if inside := unpack(data[found.start() :]):
                yield from blobs(inside, depth - 1)
    for found in re.finditer(rb"[A-Za-z0-9+/=]{60,}", data):
        with suppress(ValueError):
            yield from blobs(base64.b64decode(found[0] + b"=" * (-len(found[0]) % 4)), depth - 1)


def gzip_at(data):
    try:
        return zlib.decompressobj(wbits=31).decompress(data, 1 << 26)
    except zlib.error:
        return b""


def zlib_at(data):
    try:
        return zlib.decompressobj().decompress(data, 1 << 26)
    except zlib.error:
        return b""


def planted_in(files, used):
    """The planted words that any file has, in its name, its bytes, or what is packed in them."""
    found = set()
    pattern = re.compile(rb"canary\d+zq|4917\d{9}")
    for file in files:
        parts = [file.name.encode(), *blobs(file.read_bytes())]
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(file)
            parts.append(f"{table.schema} {table.to_pylist()}".lower().encode())
        for part in parts:
            found |= {word.decode() for word in pattern.findall(part)}
    return found & set(used)


def written(run, form, place):
    if form == "perfetto":
        pytest.importorskip("perfetto")
    if form == "html":
        pytest.importorskip("dash")
    return registry.part(export, export.Export, form).write(run, place)


@pytest.mark.parametrize("form", FORMS)
def test_no_planted_word_is_in_a_redacted_export(planted, form, tmp_path):
    run, used = planted

    assert planted_in(written(redacted(run), form, tmp_path / "out"), used) == set()


def test_the_search_finds_what_is_not_redacted(planted, tmp_path):
    run, used = planted
    found = planted_in(written(run, "parquet", tmp_path / "out"), used)
    found |= planted_in(written(run, "pprof", tmp_path / "out.pb.gz"), used)

    assert len(found) > 150


def test_a_packed_text_is_found(tmp_path):
    word = b"canary1zq"
    (tmp_path / "x").write_bytes(base64.b64encode(gzip.compress(word * 20)) + b" " + zlib.compress(word))

    assert planted_in([tmp_path / "x"], ["canary1zq"]) == {"canary1zq"}


def test_kinds_of_holders_keep_their_words(planted):
    holders = redacted(planted[0]).recordings[0].holders
    kinds = {holders.names[kind] for kind in holders.kind.tolist()}

    assert {kind for kind in HOLDERS if kind != "W"} < kinds
