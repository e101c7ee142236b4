"""The profile holds the bytes of each stack at the peak, read back by another reader of protocol buffers."""

import gzip
from pathlib import Path

import pytest

import vramscope
from vramscope import export, registry

ROOT = Path(__file__).parents[3]


def schema():
    """The messages of profile.proto that we write, built with protobuf's own classes."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="p", syntax="proto3")
    messages = {
        "ValueType": [("type", 1, 3, 1, ""), ("unit", 2, 3, 1, "")],
        "Sample": [("location_id", 1, 4, 3, ""), ("value", 2, 3, 3, "")],
        "Line": [("function_id", 1, 4, 1, ""), ("line", 2, 3, 1, "")],
        "Location": [("id", 1, 4, 1, ""), ("line", 4, 11, 3, ".p.Line")],
        "Function": [("id", 1, 4, 1, ""), ("name", 2, 3, 1, ""), ("filename", 4, 3, 1, "")],
        "Profile": [
            ("sample_type", 1, 11, 3, ".p.ValueType"),
            ("sample", 2, 11, 3, ".p.Sample"),
            ("location", 4, 11, 3, ".p.Location"),
            ("function", 5, 11, 3, ".p.Function"),
            ("string_table", 6, 9, 3, ""),
            ("time_nanos", 9, 3, 1, ""),
            ("comment", 13, 3, 3, ""),
        ],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            typed = {"type_name": of} if of else {}
            message.field.add(name=field, number=number, type=kind, label=label, **typed)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))


def test_a_profile_has_every_stack_of_the_peak_with_its_bytes(tmp_path):
    run = vramscope.load(ROOT / "sample_traces" / "transformer-cuda")
    (recording,) = run.recordings
    (file,) = registry.part(export, export.Export, "pprof").write(run, tmp_path / "peak.pb.gz")
    profile = schema()()
    profile.ParseFromString(gzip.decompress(file.read_bytes()))
    strings = profile.string_table
    functions = {each.id: each for each in profile.function}
    places = {
        each.id: (
            strings[functions[each.line[0].function_id].name],
            strings[functions[each.line[0].function_id].filename],
            each.line[0].line,
        )
        for each in profile.location
    }
    found = {tuple(places[at] for at in each.location_id): each.value[0] for each in profile.sample}
    held = recording.by_stack()
    pairs = zip(held.stack_id.tolist(), held.bytes.tolist(), strict=True)
    expected: dict = {}
    for stack_id, n_bytes in pairs:
        frames = recording.stacks.frames(stack_id) or (("no stack recorded", "", 0),)
        expected[tuple(map(tuple, frames))] = n_bytes

    assert found == expected
    assert sum(found.values()) == recording.peak().allocated.n_bytes
    assert strings[profile.sample_type[0].unit] == "bytes"
    assert profile.time_nanos == run.started_ns
    assert strings[0] == ""
