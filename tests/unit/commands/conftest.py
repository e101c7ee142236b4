"""What tests of several commands share: the schemas that are published for their JSON."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and "type" in schema:
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from _objects(each)


@pytest.fixture
def documented() -> Callable[[str, Any], None]:
    """``documented(schema, value)``: the value is valid, and has no field that the schema does not name."""
    jsonschema = pytest.importorskip("jsonschema")

    def check(name: str, value: Any) -> None:
        schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
        # Readers are to ignore fields of later versions; here every field has to be documented.
        for each in list(_objects(schema)):
            each["additionalProperties"] = False
        found = jsonschema.Draft202012Validator(schema).iter_errors(value)
        assert [f"{error.json_path}: {error.message[:300]}" for error in found] == []

    return check
