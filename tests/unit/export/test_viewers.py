"""Files for other viewers hold the figures of the recording, in the form that those viewers read."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from captures import genuine, genuine_file

import vramscope
from vramscope import export, registry
from vramscope.export.perfetto import points
from vramscope.formats._pickle import loads
from vramscope.model.recording import Run

PERFETTO = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"


def exported(run, path, name):
    (file,) = registry.part(export, export.Export, name).write(run, path)
    return file


def original(path):
    snapshot, _ = loads(gzip.decompress(path.read_bytes()))
    return snapshot


def facts(segment):
    """What a segment of a snapshot says; of a free block torch's requested size is stale."""
    blocks = [
        (block["size"], block["state"], block["requested_size"] if block["state"] != "inactive" else 0)
        for block in segment["blocks"]
    ]
    keys = ("address", "total_size", "allocated_size", "active_size", "stream", "segment_type")
    return tuple(segment[key] for key in keys), blocks


@pytest.mark.parametrize("path", genuine(), ids=lambda path: path.name.partition(".")[0])
def test_segments_of_the_exported_snapshot_are_those_that_torch_wrote(path, tmp_path):
    file = exported(vramscope.load(path), tmp_path / "out.pickle", "memory_viz")

    written, _ = loads(file.read_bytes())

    assert sorted(map(facts, written["segments"])) == sorted(map(facts, original(path)["segments"]))


@pytest.mark.parametrize("path", genuine(), ids=lambda path: path.name.partition(".")[0])
def test_events_of_the_exported_snapshot_are_those_that_torch_wrote(path, tmp_path):
    file = exported(vramscope.load(path), tmp_path / "out.pickle", "memory_viz")

    written, _ = loads(file.read_bytes())

    def events(snapshot):
        traces = [
            [
                (
                    event["action"],
                    event.get("addr"),
                    event["size"],
                    event["stream"],
                    len(event.get("frames", ())),
                )
                for event in trace
            ]
            for trace in snapshot["device_traces"]
        ]
        return [trace for trace in traces if trace]

    assert events(written) == events(original(path))


def test_torchs_own_viewer_makes_its_page_and_its_sums_from_the_export(tmp_path):
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    run = vramscope.load("sample_traces/transformer-cuda")
    snapshot, _ = loads(exported(run, tmp_path / "out.pickle", "memory_viz").read_bytes())
    (recording,) = run.recordings
    totals = recording.timeline()

    assert sum(segment["total_size"] for segment in snapshot["segments"]) == totals.reserved_bytes[-1]
    assert sum(map(viewer.calc_active, snapshot["segments"])) == totals.active_bytes[-1]
    assert f"{len(recording.trace)} entries" in viewer.trace(snapshot)
    assert "base64" in viewer.trace_plot(snapshot)
    assert viewer.segsum(snapshot)


def test_several_ranks_become_one_snapshot_each(tmp_path):
    (recording,) = vramscope.load(genuine_file("streams")).recordings
    second = replace(recording, process=replace(recording.process, rank=1))
    files = registry.part(export, export.Export, "memory_viz").write(
        Run("two", "two", (recording, second)), tmp_path / "out"
    )

    assert [file.name for file in files] == ["rank0.pickle", "rank1.pickle"]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("trace", ["transformer-cuda", "gan-retain-graph"])
def test_flame_graphs_sum_up_to_the_peak(trace, tmp_path):
    run = vramscope.load(f"sample_traces/{trace}")
    (recording,) = run.recordings
    peak = recording.peak().allocated.n_bytes

    text = exported(run, tmp_path / "out.txt", "flamegraph").read_text()
    document = json.loads(exported(run, tmp_path / "out.json", "speedscope").read_text())

    assert sum(int(line.rpartition(" ")[2]) for line in text.splitlines()) == peak
    (profile,) = document["profiles"]
    assert sum(profile["weights"]) == profile["endValue"] == peak
    assert len(profile["samples"]) == len(profile["weights"])
    assert max(map(max, profile["samples"])) == len(document["shared"]["frames"]) - 1
    outermost = {line.rpartition(" ")[0].partition(" (")[0] for line in text.splitlines()}
    assert outermost == {document["shared"]["frames"][sample[0]]["name"] for sample in profile["samples"]}


def tracks(file):
    """Name of each track → its events as (time, type, value or name), by the package's own protos."""
    protos = pytest.importorskip(PERFETTO)
    trace = protos.Trace.FromString(file.read_bytes())
    names, events, default = {}, defaultdict(list), {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            uuid = packet.track_descriptor.uuid
            names[uuid] = packet.track_descriptor.name or packet.track_descriptor.process.process_name
            defaults = packet.trace_packet_defaults.track_event_defaults
            default[packet.trusted_packet_sequence_id] = defaults.track_uuid
        if packet.HasField("track_event"):
            event = packet.track_event
            value = event.counter_value if event.type == event.TYPE_COUNTER else event.name
            uuid = default[packet.trusted_packet_sequence_id]
            events[names[uuid]].append((packet.timestamp, event.type, value))
    return events


def test_perfettos_counters_have_the_peaks_of_the_recording_and_slices_its_steps(tmp_path):
    run = vramscope.load("sample_traces/transformer-cuda")
    (recording,) = run.recordings
    found = tracks(exported(run, tmp_path / "out.pftrace", "perfetto"))

    totals = recording.timeline()
    assert max(value for _, _, value in found["allocated"]) == totals.allocated_bytes.max()
    assert [value for _, _, value in found["reserved"]][-1] == totals.reserved_bytes[-1]
    assert [name for _, kind, name in found["steps"] if kind == 1] == [
        f"step {index}" for index in recording.steps.index.tolist()
    ]
    for track in found.values():
        times = [at for at, _, _ in track]
        assert times == sorted(times)
    peak_categories = recording.categories().totals
    at = int(totals.time_ns[recording.peak().allocated.instant])
    for name, n_bytes in peak_categories.items():
        until = [value for time, _, value in found[f"allocated: {name}"] if time <= at]
        assert until[-1] == n_bytes, name


def test_a_downsampled_counter_keeps_the_extremes_of_every_stretch():
    values = np.cumsum(np.random.default_rng(0).integers(-500, 500, 100_000))
    rows = points(values, 3_000)

    assert len(rows) <= 3_002
    assert (rows[0], rows[-1]) == (0, len(values) - 1)
    edges = np.linspace(0, len(values), 1_001).astype(int)
    for start, end in pairwise(edges.tolist()):
        kept = values[rows[(rows >= start) & (rows < end)]]
        assert (kept.max(), kept.min()) == (values[start:end].max(), values[start:end].min())
