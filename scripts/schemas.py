"""Makes the JSON schemas of ``docs/schemas`` from the tables of ``docs/json.md``.

python scripts/schemas.py [--check]

A type is a word of JSON Schema, the name of a shared object, ``list of …`` or ``map of …``. ``X or null`` may
be null; behind a comma, ``list of X, or null``, the list itself may be. A row without a field takes over the
fields of a shared object.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "json.md"
FOLDER = ROOT / "docs" / "schemas"
_BASE = "https://vramscope.github.io/vramscope/schemas"
_WORDS = ("integer", "number", "string", "boolean", "object")
_SEVERAL = {"list": ("array", "items"), "map": ("object", "additionalProperties")}
_ROW = re.compile(r"^\| (?:`(.+?)`)? ?\| (.+?) \| (.*?) ?\|$", re.MULTILINE)

Schema = dict[str, Any]


def schemas() -> dict[str, Schema]:
    """Each command's schema, by the name of its file."""
    commands, _, shared = PAGE.read_text(encoding="utf-8").partition("\n## Shared objects\n")
    tables = dict(_sections(shared, "###"))
    objects = {name: _object(text, tables) for name, text in tables.items()}
    found = {}
    for command, text in _sections(commands, "##"):
        name = command.replace(" --", "-")
        schema = _object(text, tables)
        found[name] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"{_BASE}/{name}.json",
            "title": f"vramscope {command} --json",
            **schema,
        }
        if used := _used(schema, objects):
            found[name]["$defs"] = used
    return found


def _sections(text: str, marks: str) -> list[tuple[str, str]]:
    return re.findall(rf"^{marks} `([\w -]+)`\n(.*?)(?=^##|\Z)", text, flags=re.MULTILINE | re.DOTALL)


def _object(text: str, tables: dict[str, str]) -> Schema:
    """The schema of one table; of a list of objects if its first field is ``[]``."""
    root: Schema = {"type": "object"}
    for path, words, meaning in _ROW.findall(text):
        if not path:
            root = _object(tables[words], tables)
            continue
        schema = _type(words) | ({"description": meaning} if meaning else {})
        if path == "[]":
            root = schema
            continue
        *parents, name = path.removeprefix("[].").split(".")
        owner = _inside(root)
        for parent in parents:
            owner = _inside(owner["properties"][parent.removesuffix("[]")])
        owner.setdefault("properties", {})[name] = schema
        # The one field that is left out instead of being null.
        if "the field is missing" not in meaning:
            owner.setdefault("required", []).append(name)
    return root


def _inside(schema: Schema) -> Schema:
    """The object that the fields of *schema* belong to: itself, or what its list has."""
    return schema.get("items", schema)


def _type(words: str) -> Schema:
    kind, of, item = words.partition(" of ")
    if words.endswith(", or null"):
        return _or_null(_type(words.removesuffix(", or null")))
    if of:
        name, place = _SEVERAL[kind]
        return {"type": name, place: _type("object" if item == "objects" else item)}
    if words.endswith(" or null"):
        return _or_null(_type(words.removesuffix(" or null")))
    if words == "any":
        return {}
    return {"type": words} if words in _WORDS else {"$ref": f"#/$defs/{words}"}


def _or_null(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema | {"type": [schema["type"], "null"]}


def _used(schema: Schema, objects: dict[str, Schema]) -> dict[str, Schema]:
    """The shared objects that *schema* refers to, directly or through another."""
    found: dict[str, Schema] = {}
    texts = [json.dumps(schema)]
    while texts:
        for name in re.findall(r'"#/\$defs/([\w-]+)"', texts.pop()):
            if name not in found:
                found[name] = objects[name]
                texts.append(json.dumps(objects[name]))
    return dict(sorted(found.items()))


def main() -> int:
    """Write every schema; with ``--check`` only say which differ."""
    made = {f"{name}.json": json.dumps(schema, indent=1) + "\n" for name, schema in schemas().items()}
    old = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    differ = sorted(name for name in made.keys() | old.keys() if made.get(name) != old.get(name))
    if "--check" in sys.argv:
        print(
            "\n".join(
                f"docs/schemas/{name} is not what docs/json.md says: python scripts/schemas.py"
                for name in differ
            )
        )
        return int(bool(differ))
    FOLDER.mkdir(exist_ok=True)
    for name in differ:
        path = FOLDER / name
        path.write_text(made[name], encoding="utf-8") if name in made else path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
