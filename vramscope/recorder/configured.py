"""Options of ``record`` from the environment (``VRAMSCOPE_MODE``) and from pyproject.toml."""

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vramscope.errors import UsageError
from vramscope.recorder.messages import Messages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "VRAMSCOPE_"
RUN = "VRAMSCOPE_RUN"
"""Id of the run of ``vramscope run COMMAND``, for the processes below that no launcher numbers."""
RECORDED_RANK = "VRAMSCOPE_RECORDED_RANK"
"""Rank of a recorded process, for the processes that it starts: with the same rank they are its helpers."""
DETACHED = "VRAMSCOPE_DETACHED"
"""Set where a process below ``vramscope run`` is recorded only while ``vramscope attach`` asks for it."""
NUMBERED = "vramscope run"
"""The launcher of a process that is numbered in the order in which the processes of its run started."""
WEBHOOK = "VRAMSCOPE_WEBHOOK"
"""The URL that findings are sent to; a secret, so the environment alone has it."""
MAX_SIZE = "2 GiB"
"""Default size cap of a rank's directory, about 40 million events.

A run that records for weeks keeps its last hours in full, and the peaks of every earlier step."""
STACK_DEPTH = 64
_OTHERS = frozenset({
    "CACHE", "DETACHED", "GPU_OUT", "RECORDED_RANK", "RUN", "SPOOL", "UPLOAD_EVERY_S", "UPLOAD_MIB_PER_S",
    "UPLOAD_WAIT_S", "WEBHOOK",
})  # fmt: skip
"""What is read from the environment elsewhere."""
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_NO_LIMIT = "none"


class RecordOptions(NamedTuple):
    """Options by the names of ``record``'s parameters; they are not checked against one another."""

    directory: str | os.PathLike[str] | None = None
    device: str = "auto"
    mode: str = "events"
    every: int | str | None = None
    capacity: str | int | None = None
    stack_depth: int = STACK_DEPTH
    max_size: str | int | None = MAX_SIZE
    quiet: bool = False
    tags: str = ""
    alert_at: str = ""


def completed(given: Mapping[str, Any]) -> RecordOptions:
    """Complete the options of a call by those of the environment, of pyproject.toml, and the defaults.

    What is configured gives way where it contradicts *given*. Values have the right types. Raises UsageError
    if a name in pyproject.toml is unknown, or a value has the wrong type.
    """
    found = dict(_of_project(working_directory())) | _of_environment()
    if given.get("device") == "simulated":
        found.pop("mode", None)
    if given.get("mode") == "counters":
        found = {name: found[name] for name in found if name not in ("stack_depth", "capacity", "every")}
        found = {name: value for name, value in found.items() if (name, value) != ("device", "simulated")}
    if given.get("device") == "cuda":
        found.pop("capacity", None)
    if given.get("every") is not None:
        found.pop("mode", None)
    return RecordOptions(**found | dict(given))


def working_directory() -> Path:
    """Return the working directory; where it was deleted, the one for temporary files."""
    try:
        return Path.cwd()
    except Exception:  # noqa: BLE001 -- it was deleted, or the function is the program's
        return Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 -- gettempdir() asks for it again


def _of_environment() -> dict[str, Any]:
    _check_names(frozenset(name for name in os.environ if name.startswith(PREFIX)))
    found = {}
    for name in RecordOptions._fields:
        text = os.environ.get(PREFIX + name.upper())
        if text:
            found[name] = _value(name, text, PREFIX + name.upper())
    return found


@cache
def _check_names(variables: frozenset[str]) -> None:
    known = {*map(str.upper, RecordOptions._fields), *_OTHERS}
    unknown = sorted(name for name in variables if name.removeprefix(PREFIX) not in known)
    if unknown:
        names = ", ".join(PREFIX + name.upper() for name in RecordOptions._fields)
        # No error: a variable for a newer version must not end a training.
        Messages(quiet=False).say(f"{unknown[0]} is ignored; there is: {names}")


@cache
def _of_project(folder: Path) -> Mapping[str, Any]:
    """The options of the nearest pyproject.toml at or above *folder* that has any."""
    for home in (folder, *folder.parents):
        path = home / "pyproject.toml"
        table = _table(path) if path.is_file() else {}
        # A table below it belongs to another tool, as [tool.vramscope.structure] of vramscope's own checks.
        given = {name: value for name, value in table.items() if not isinstance(value, dict)}
        if given:
            return {name: _of_file(name, value, path) for name, value in given.items()}
    return {}


def _table(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except Exception:  # noqa: BLE001 -- open() may be a function of the program
        return {}
    # A file of somebody else is none of ours, however damaged.
    if "tool.vramscope" not in text:
        return {}
    try:
        found = tomllib.loads(text).get("tool", {}).get("vramscope", {})
    except ValueError as error:
        raise UsageError(f"{path}: this is not TOML: {error}") from None
    return found if isinstance(found, dict) else {}


def _of_file(name: str, value: object, path: Path) -> Any:
    where = f"{name} in [tool.vramscope] of {path}"
    if name not in RecordOptions._fields:
        raise UsageError(f"no option {where}; there is: {', '.join(RecordOptions._fields)}")
    if type(value) not in (str, int, bool):
        raise UsageError(f"{where}: a text, a number or true or false, not {value!r}")
    found = _value(name, str(value).lower() if isinstance(value, bool) else str(value), where)
    if name == "directory" and "://" not in found:
        return str(path.parent / found)
    return found


def _value(name: str, text: str, where: str) -> Any:
    if name == "quiet":
        if text.lower() not in _SWITCH:
            raise UsageError(f"{where}: true or false, not {text!r}")
        return _SWITCH[text.lower()]
    if name == "stack_depth":
        if not text.isdecimal():
            raise UsageError(f"{where}: a number of frames from 0 on, not {text!r}")
        return int(text)
    if name == "every" and text.isdecimal():
        return int(text)
    if name == "max_size" and text.lower() == _NO_LIMIT:
        return None
    return text
