"""What does a JSON file hold? With errors that say which file."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vramscope.errors import FormatError
from vramscope.formats._file import contents


def parsed(path: Path, each: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The content of a JSON file, gzipped or not. What *each* returns takes the place of each object."""
    data = contents(path)
    enabled = gc.isenabled()
    # Millions of live containers and no garbage: cyclic collection would double the time.
    gc.disable()
    try:
        return json.loads(data, object_hook=each)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: damaged JSON ({str(error)[:200]}): copy it or export it again") from None
    finally:
        if enabled:
            gc.enable()
