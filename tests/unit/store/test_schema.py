"""The columns of schema 1.5 and 2.4, and that the documentation names exactly these."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from vramscope.store.schema import OF_THE_RANK, SCHEMAS, device_of, file_name

DOCUMENT = Path(__file__).parents[3] / "docs" / "trace-format.md"

# Written out, because the code derives them from the model: a change there must not change the files unseen.
SCHEMA = {
    "events": "action:uint8 time_ns:int64 address:uint64 size:int64 block_size:int64 stream:uint64 pool:int32"
    " stack_id:int32",
    "marks": "kind:uint8 phase:uint8 time_ns:int64 event:int64 thread:int64 value:int64 name:string",
    "labels": "event:int64 address:uint64 category:uint8 element_bytes:uint8 name:string",
    "holders": "event:int64 address:uint64 position:int32 kind:string name:string owner:string file:string"
    " line:int32 number:int64",
    "samples": "time_ns:int64 event:int64 allocated_bytes:int64 reserved_bytes:int64 device_used_bytes:int64"
    " device_total_bytes:int64 process_used_bytes:int64 utilization_percent:int64"
    " requested_bytes:int64 active_bytes:int64 inactive_split_bytes:int64 allocated_peak_bytes:int64"
    " reserved_peak_bytes:int64 device_free_bytes:int64 others_used_bytes:int64 reserved_drift_bytes:int64"
    " host_resident_bytes:int64 host_pinned_bytes:int64 host_pinned_active_bytes:int64 nccl_bytes:int64"
    " allocated_highest_bytes:int64 reserved_highest_bytes:int64"
    " requested_highest_bytes:int64 active_highest_bytes:int64 retries:int64",
    "peaks": "event:int64 requested:int64 allocated:int64 active:int64 reserved:int64",
    "steps": "start_event:int64 end_event:int64 start_ns:int64 end_ns:int64 is_joined:bool requested:int64"
    " allocated:int64 active:int64 reserved:int64",
    "states": "event:int64 time_ns:int64 reported:bool segments:list of struct blocks:list of struct",
    "segments": "address:uint64 size:int64 stream:uint64 pool:int32 is_large:bool is_expandable:bool"
    " stack_id:int32",
    "blocks": "segment:int32 address:uint64 size:int64 requested_size:int64 state:uint8 stack_id:int32",
    "pools": "first:uint64 second:uint64",
    "stacks": "parent:int32 function:string file:string line:int32",
    "notes": "device:int32 code:string text:string value:int64",
}


def described(fields: list[pa.Field]) -> str:
    def kind(field: pa.Field) -> str:
        return "list of struct" if pa.types.is_list(field.type) else str(field.type)

    return " ".join(f"{field.name}:{kind(field)}" for field in fields)


def columns_in_code() -> dict[str, str]:
    states = SCHEMAS["states"]
    nested = {name: described(list(states.field(name).type.value_type)) for name in ("segments", "blocks")}
    return {stream: described(list(schema)) for stream, schema in SCHEMAS.items()} | nested


def columns_in_document() -> dict[str, str]:
    sections = re.split(r"^#{3,4} ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    rows = {
        section.split("\n", 1)[0]: re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, re.MULTILINE)
        for section in sections
    }
    return {stream: " ".join(f"{name}:{kind}" for name, kind in columns) for stream, columns in rows.items()}


def test_the_code_writes_the_schema() -> None:
    assert columns_in_code() == SCHEMA


def test_the_document_names_every_stream_and_column_with_its_type() -> None:
    assert columns_in_document() == SCHEMA


@pytest.mark.parametrize("stream", SCHEMAS)
def test_the_document_shows_the_file_of_every_stream(stream: str) -> None:
    name = file_name(stream, None if stream in OF_THE_RANK else 0)

    assert name in DOCUMENT.read_text()


def test_a_file_name_tells_its_device() -> None:
    assert [device_of(file_name(stream, 12)) for stream in ("events", "states")] == [12, 12]


@pytest.mark.parametrize(
    "name", ["stacks.arrows", "stacks-0.arrows", "future-0.arrows", "events-x.arrows", "events-0.arrows.tmp"]
)
def test_other_files_belong_to_no_device(name: str) -> None:
    assert device_of(name) is None
