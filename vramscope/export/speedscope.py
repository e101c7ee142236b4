"""Export of what was allocated at the peak as a flame graph for speedscope (https://www.speedscope.app).

The form is https://www.speedscope.app/file-format-schema.json: one sampled profile per recording, with bytes
as weights.
"""

import json
from pathlib import Path
from typing import Any

from vramscope._version import __version__
from vramscope.export import Export
from vramscope.export.live_stacks import live_stacks, title
from vramscope.model.recording import Recording, Run
from vramscope.model.stacks import Frame

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(run: Run, path: Path) -> list[Path]:
    """Write one JSON file with a profile for each recording."""
    frames: dict[Frame, int] = {}
    profiles = [_profile(recording, frames) for recording in run.recordings]
    document = {
        "$schema": _SCHEMA,
        "exporter": f"vramscope {__version__}",
        "name": run.name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": profiles,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return [path]


def _frame(frame: Frame) -> dict[str, Any]:
    known = {"file": frame.file, "line": frame.line} if frame.file else {}
    return {"name": frame.function, **known}


def _profile(recording: Recording, frames: dict[Frame, int]) -> dict[str, Any]:
    samples, weights = [], []
    for stack, n_bytes in live_stacks(recording):
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(n_bytes)
    return {
        "type": "sampled",
        "name": f"{title(recording)}: allocated at the peak",
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


EXPORT = Export("speedscope", "what was allocated at the peak, by call stack, for speedscope", write)
