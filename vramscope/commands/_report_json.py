"""Parts of a report as JSON: calls of the driver with the largest rise, and the values of samples."""

from typing import Any

from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis.driver_calls import DriverCalls, driver_calls, jump_at, jump_words, largest_jump
from vramscope.analysis.driver_calls import reserved_by as reserved_by_line
from vramscope.analysis.folding import fold
from vramscope.analysis.summary import Summary
from vramscope.model.recording import Recording

_MOST_LINES = 20


def driver_calls_as_json(recording: Recording) -> dict[str, Any] | None:
    """Return what was reserved and given back, by which lines, and the largest rise with its reason.

    None where the source does not say what the driver was asked.
    """
    calls = driver_calls(recording)
    if not len(calls) or not recording.has_layout:
        return None
    reserved_bytes = int(calls.gains.n_bytes.sum())
    lines = reserved_by_line(recording.stacks, calls)
    rows = zip(lines.n_bytes.tolist(), lines.n_calls.tolist(), lines.stack_id.tolist(), strict=True)
    return {
        "calls": int(calls.n_calls.sum()),
        "reserved_bytes": reserved_bytes,
        "returned_bytes": int(calls.n_bytes.sum()) - reserved_bytes,
        "retries": int(calls.is_retry.sum()),
        "reserved_by": [
            {"bytes": n_bytes, "calls": n_calls, "where": _where(recording, stack_id)}
            for n_bytes, n_calls, stack_id in list(rows)[:_MOST_LINES]
        ],
        "largest_rise": _rise(recording, calls, largest_jump(calls)),
    }


def _rise(recording: Recording, calls: DriverCalls, row: int) -> dict[str, Any] | None:
    if row < 0:
        return None
    event, step, asked = int(calls.event[row]), int(calls.step[row]), int(calls.requested_bytes[row])
    found = jump_at(recording, calls, row, state_from_nearest(recording, event))
    return {
        "event": event,
        "step": None if step < 0 else int(recording.steps.index[step]),
        "bytes": int(calls.n_bytes[row]),
        "requested_bytes": None if asked < 0 else asked,
        "free_bytes": found.free_bytes,
        "largest_free_bytes": found.largest_bytes,
        "where": _where(recording, int(calls.stack_id[row])),
        "text": jump_words(fold(recording.stacks), found),
    }


def _where(recording: Recording, stack_id: int) -> dict[str, Any] | None:
    frame = fold(recording.stacks).frame(stack_id)
    return None if frame is None else frame._asdict()


def levels(summary: Summary) -> dict[str, Any]:
    """Return the memory at the end and at its peak; without events, the values of samples."""
    found = summary.sampled
    if found is None:
        unknown = summary.recording.unknown_quantities
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
