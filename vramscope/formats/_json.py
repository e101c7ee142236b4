"""Parsing of JSON files, with errors that name the file."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vramscope.errors import FormatError
from vramscope.formats._file import contents


def parsed(path: Path, each: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the content of a JSON file, gzipped or not; *each* replaces every object by its result."""
    data = contents(path)
    enabled = gc.isenabled()
    # There are millions of live containers and no garbage: cyclic garbage collection would double the time.
    gc.disable()
    try:
        return json.loads(data, object_hook=each)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: damaged JSON ({str(error)[:200]}): copy it or export it again") from None
    finally:
        if enabled:
            gc.enable()
