"""The values of samples as JSON; null if they are unknown."""

from typing import Any

from vramscope.analysis.summary import Summary


def levels(summary: Summary) -> dict[str, Any]:
    """Return the memory at the end and at its peak; without events, the values of samples."""
    found = summary.sampled
    if found is None:
        unknown = () if summary.recording.has_reserved else ("reserved",)
        end: dict[str, int | None] = {
            f"{name}_bytes": None if name in unknown else n_bytes for name, n_bytes in summary.end.items()
        }
        most: dict[str, int | None] = {
            f"{name}_bytes": None if name in unknown else high.n_bytes for name, high in summary.peak.items()
        }
        return {"end": end, "peak": most, "peak_is_exact": summary.verdicts.peak_is_exact}
    counters = summary.recording.counters
    names = [f"{quantity}_bytes" for quantity in summary.end]
    peak = {name: _known(getattr(found, name, -1)) for name in names}
    return {
        "end": {name: _known(int(getattr(counters, name)[-1])) if len(counters) else None for name in names},
        "peak": peak,
        "peak_is_exact": found.is_exact,
    }


def waterfall(summary: Summary) -> dict[str, Any] | None:
    """Return the bars of the fullest and the last sample; None without samples."""
    found = summary.waterfall
    if not len(found):
        return None
    return {
        name: {
            "time_ns": int(found.time_ns[row]),
            "instant": _known(int(found.instant[row])),
            "used_bytes": _known(int(found.used_bytes[row])),
            "total_bytes": _known(int(found.total_bytes[row])),
            "drift_bytes": _known(int(found.drift_bytes[row])),
            "bars": [
                {"name": bar.name, "bytes": bar.n_bytes, "source": bar.source} for bar in found.bars(row)
            ],
        }
        for name, row in (("fullest", found.fullest), ("end", found.last))
    }


def _known(n_bytes: int) -> int | None:
    return None if n_bytes < 0 else n_bytes
