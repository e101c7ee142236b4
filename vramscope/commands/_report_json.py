"""The answer of ``vramscope report`` for machines: schema 1, to which fields are only ever added."""

from collections.abc import Sequence
from typing import Any

from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis.driver_calls import DriverCalls, driver_calls, jump_at, jump_words, largest_jump
from vramscope.analysis.driver_calls import reserved_by as reserved_by_line
from vramscope.analysis.findings import finding_as_json, located
from vramscope.analysis.folding import fold
from vramscope.analysis.forecast import Outlook
from vramscope.analysis.leaks.holders import holder_words
from vramscope.analysis.lines import LiveBytes
from vramscope.analysis.summary import Instant, StepPeak, Summary
from vramscope.analysis.verdicts import MemoryGrowth
from vramscope.commands._ranks_page import ranks_as_json
from vramscope.model.recording import Recording

_MOST_LINES = 20


def as_json(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the report as JSON of schema 1, to which fields are only ever added."""
    found = located((summary.recording, summary.findings) for summary in summaries)
    return {
        "schema": 1,
        "recordings": [_recording(summary) for summary in summaries],
        "ranks": ranks_as_json(summaries),
        "findings": [finding_as_json(each) for each in found],
    }


def _recording(summary: Summary) -> dict[str, Any]:
    recording = summary.recording
    return {
        "rank": recording.process.rank,
        "device": recording.device.index,
        "restart": recording.process.restarts,
        "source": recording.source,
        "events": len(recording.trace),
        "starts_late": summary.starts_late,
        "gaps": summary.gaps,
        **_levels(summary),
        "steps": [_step(step) for step in summary.steps],
        "outside_steps": _step(summary.outside) if summary.outside else None,
        "live_at_peak": live_as_json(summary),
        "private_pools_at_peak": [
            {
                "pool": list(pool.id),
                "reserved_bytes": pool.reserved_bytes,
                "allocated_bytes": pool.allocated_bytes,
                "kind": pool.kind.value,
                "place": pool.place or None,
            }
            for pool in summary.private_pools
        ],
        "annotations_at_peak": [
            {"text": text, "blocks": n_blocks, "bytes": n_bytes}
            for text, (n_blocks, n_bytes) in summary.annotated.items()
        ],
        "categories_at_peak": summary.categories,
        "category_own_peaks": summary.category_peaks,
        "samples_peak": dict(summary.samples),
        "pinned_at_peak": summary.pinned
        and {
            "in_use_bytes": summary.pinned.peak_bytes,
            "held_bytes": summary.pinned.reserved_bytes,
            "live": live_as_json(summary.pinned),
        },
        "waterfall": _waterfall(summary),
        "driver_calls": _driver_calls(recording),
        "growth": growth_as_json(summary.verdicts.growth),
        "forecast": _forecast(summary.outlook),
        "missing": [
            {"part": each.part.value, "code": str(each.code), "text": each.text}
            for each in summary.verdicts.missing
        ],
        "outcome": recording.outcome.value,
        "prediction": recording.prediction and recording.prediction.to_json(),
        "notes": [{"code": note.code, "text": note.text, "value": note.value} for note in recording.notes],
    }


def growth_as_json(growth: MemoryGrowth) -> dict[str, Any]:
    """Return the verdict on growth; ``is_decided`` says whether a check can rely on it."""
    return {"verdict": growth.verdict.value, "text": growth.text, "is_decided": growth.is_decided}


def _forecast(outlook: Outlook) -> dict[str, Any] | None:
    """Return the step at which the limit is reached; None where none is in sight, or that is not known."""
    found = outlook.forecast
    if found is None:
        return None
    return {
        "step": found.step,
        "step_range": list(found.step_range),
        "bytes": found.n_bytes,
        "bytes_per_step": found.bytes_per_step,
        "limit_bytes": found.limit_bytes,
        "text": outlook.text,
    }


def _step(step: StepPeak) -> dict[str, Any]:
    return {
        "index": step.index,
        "peak_allocated_bytes": step.allocated_bytes,
        "is_exact": step.is_exact,
        "has_detail": step.has_detail,
        "phases": [
            {"phase": phase, "peak_allocated_bytes": n_bytes} for phase, n_bytes in step.phases.items()
        ],
    }


def live_as_json(summary: Summary | Instant) -> list[dict[str, Any]]:
    """Return what was allocated at the peak, or at an instant; the bytes add up to it."""
    total = sum(row.n_bytes for row in summary.live)
    return [_live_row(row, total, has_categories=summary.categories is not None) for row in summary.live]


def _live_row(row: LiveBytes, total: int, *, has_categories: bool) -> dict[str, Any]:
    is_known = bool(row.frames) and not row.is_library
    return {
        "bytes": row.n_bytes,
        "blocks": row.n_blocks,
        "share": row.n_bytes / total,
        "category": row.category.name.lower() if has_categories else None,
        "module": row.module or None,
        "where": row.frames[0]._asdict() if is_known else None,
        "frames": [frame._asdict() for frame in row.frames],
        "holder": holder_words(row.holders) or None,
    }


def at_instant_as_json(found: Instant) -> dict[str, Any]:
    """Return what one recording had allocated at an instant."""
    recording = found.recording
    return {
        "rank": recording.process.rank,
        "device": recording.device.index,
        "instant": found.allocated.instant,
        "allocated_bytes": found.allocated.n_bytes,
        "reserved_bytes": found.reserved_bytes if recording.has_reserved else None,
        "peak_allocated_bytes": found.peak_bytes,
        "categories": found.categories,
        "live": live_as_json(found),
    }


def _driver_calls(recording: Recording) -> dict[str, Any] | None:
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


def _levels(summary: Summary) -> dict[str, Any]:
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


def _waterfall(summary: Summary) -> dict[str, Any] | None:
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
