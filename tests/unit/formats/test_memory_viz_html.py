"""The snapshot in a page of torch's memory viewer is the snapshot that the page was made from."""

import base64
import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import captures
import pytest

from vramscope.errors import FormatError
from vramscope.formats.memory_viz_html import read, sniff
from vramscope.formats.torch_snapshot import run_of
from vramscope.loading import load

PAGE = """<!DOCTYPE html>
<html><head></head><body><script type="module">
import {add_local_files} from "https://cdn.jsdelivr.net/gh/pytorch/pytorch@main/torch/utils/viz/MemoryViz.js"
const local_files = %s
add_local_files(local_files, 'Active Memory Timeline')
</script></body>"""


def snapshot(**of_events: Any) -> dict[str, Any]:
    block = {"address": 512, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}
    rest = {"address": 1024, "size": 2096640, "requested_size": 0, "state": "inactive", "frames": []}
    segment: dict[str, Any] = {"device": 0, "address": 512, "total_size": 2097152, "stream": 0}
    segment |= {"segment_type": "small", "blocks": [block, rest]}
    event = {
        "action": "alloc",
        "addr": 512,
        "size": 500,
        "stream": 0,
        "time_us": 7,
        "frames": [],
        **of_events,
    }
    return {"segments": [segment], "device_traces": [[event]]}


def page(data: bytes) -> bytes:
    files = [{"name": "snapshot.pickle", "base64": base64.b64encode(data).decode()}]
    return (PAGE % json.dumps(files)).encode()


def saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    assert sniff(data[: 1 << 16], path)
    return path


@pytest.mark.parametrize("n_zeros", range(4))
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_page_holds_what_its_snapshot_holds(tmp_path, n_zeros, pack):
    run = load(saved(tmp_path / "plot.html", pack(page(pickle.dumps(snapshot()) + b"\0" * n_zeros))))
    (recording,) = run.recordings

    assert (run.name, run.notes) == ("plot", ())
    assert recording.timeline().requested_bytes.tolist() == [0, 500]
    assert recording.timeline().reserved_bytes.tolist() == [2097152, 2097152]


def test_a_page_made_from_a_profile_says_what_is_made_up_in_it(tmp_path):
    run = read(saved(tmp_path / "plot.html", page(pickle.dumps(snapshot(category="activation")))))

    assert [note.code for note in run.notes] == ["made_up_segments"]
    assert "no_layout" in {note.code for note in run.recordings[0].notes}


class Evil:
    """A pickle that would run a command."""

    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_nothing_in_a_page_is_executed(tmp_path, capsys):
    path = saved(tmp_path / "plot.html", page(pickle.dumps({"segments": Evil()})))

    with pytest.raises(FormatError, match=r"the snapshot in this page: byte .* refused"):
        read(path)
    assert capsys.readouterr().out == ""


def test_a_page_without_data_is_refused(tmp_path):
    path = saved(tmp_path / "plot.html", (PAGE % "[]").encode())

    with pytest.raises(FormatError, match="without a snapshot in it"):
        read(path)


def test_a_page_with_damaged_data_is_refused(tmp_path):
    whole = page(pickle.dumps(snapshot()))
    damaged = whole.replace(b'"base64": "', b'"base64": "A')

    with pytest.raises(FormatError, match="the snapshot in this page"):
        read(saved(tmp_path / "odd.html", damaged))


@pytest.mark.parametrize("missing", range(1, 400, 37))
def test_a_page_cut_within_its_data_is_refused(tmp_path, missing):
    whole = page(pickle.dumps(snapshot()))

    with pytest.raises(FormatError, match="without a snapshot in it"):
        read(saved(tmp_path / "cut.html", whole[: whole.index(b'"}]') - missing + 1]))


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b"add_local_files", b"<html><img src='data:image/png;base64,iVBORw0'>"]
)
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x.html"))


@pytest.mark.parametrize("plot", ["trace_plot", "segment_plot"])
def test_pages_that_torch_makes_of_a_genuine_snapshot_hold_all_of_it(tmp_path, plot):
    source = captures.genuine_file("empty")
    viewer = pytest.importorskip("torch.cuda._memory_viz", reason="no torch")
    genuine = pickle.load(io.BytesIO(gzip.decompress(source.read_bytes())))
    path = saved(tmp_path / "plot.html", getattr(viewer, plot)(genuine).encode())
    expected, found = run_of(genuine, path).recordings, read(path).recordings

    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.trace.address.tolist() == other.trace.address.tolist()
        assert one.peak() == other.peak()


def test_a_page_that_torch_makes_of_a_profile_opens(tmp_path):
    torch = pytest.importorskip("torch", reason="no torch")
    viewer = pytest.importorskip("torch.cuda._memory_viz", reason="no torch")
    kinds = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **kinds) as profile:
        kept = torch.ones(1 << 18)
    path = saved(tmp_path / "plot.html", viewer.profile_plot(profile).encode())
    run = read(path)

    assert kept.nbytes == 1 << 20
    assert run.recordings[-1].peak().requested.n_bytes >= 1 << 20
    assert [note.code for note in run.notes] == ["made_up_segments"]
