"""The pages of ``report --where`` and ``report --at``: allocations that a search finds, and one instant."""

from collections.abc import Iterator, Sequence
from typing import Any

from vramscope.analysis.allocations import FoundAllocations, allocations
from vramscope.analysis.folding import Folded, fold
from vramscope.analysis.lines import NO_STACK, frame_words
from vramscope.analysis.step_and_phase import phase_words, step_and_phase_at
from vramscope.analysis.summary import Instant
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.commands._summary_page import live_table
from vramscope.model.marks import Category
from vramscope.model.recording import Recording
from vramscope.units import format_bytes, format_count, format_duration, format_name, format_share


def where_page(recordings: Sequence[Recording], where: str, top: int) -> Iterator[Block]:
    """Yield what was found in each recording. Raises SearchError."""
    for recording in recordings:
        found = allocations(recording, where)
        process, device = recording.process, recording.device
        name = f"rank {process.rank}, device {device.index}"
        yield Heading(f"{format_count(len(found), 'allocation')} found ({name})", level=1)
        if not len(found):
            continue
        yield Text(
            f"{format_bytes(found.total_bytes)} in all blocks; they were not all live at the same time"
        )
        if len(found) > top:
            yield Text(f"the largest {top}:", "quiet")
        code = fold(recording.stacks)
        rows = tuple(_cells(recording, found, code, row) for row in range(min(top, len(found))))
        yield Grid(("block", "category", "allocated in", "lived", "line"), rows, "rllrl")


def _cells(recording: Recording, found: FoundAllocations, code: Folded, row: int) -> tuple[str, ...]:
    return (
        format_bytes(int(found.block_bytes[row])),
        format_name(Category(int(found.category[row]))),
        _moment(recording, int(found.alloc_event[row])),
        _lived(recording, found, row),
        _line(found, code, row),
    )


def _moment(recording: Recording, event: int) -> str:
    if event < 0:
        return "before the recording"
    step, _ = step_and_phase_at(recording, event + 1)
    words = [f"step {step}"] if step is not None else []
    return ", ".join([*words, *filter(None, [phase_words(recording, event + 1)])]) or f"event {event:,}"


def _lived(recording: Recording, found: FoundAllocations, row: int) -> str:
    born, freed = int(found.alloc_event[row]), int(found.free_event[row])
    if freed == -1:
        return "not freed"
    if born < 0 or freed < 0:
        return "unknown"
    time_ns = recording.trace.time_ns
    if recording.trace.has_clock:
        return format_duration(int(time_ns[freed] - time_ns[born]))
    return f"{freed - born:,} events"


def _line(found: FoundAllocations, code: Folded, row: int) -> str:
    frame = code.frame(int(found.stack_id[row]))
    module = found.paths[int(found.module[row])]
    return (frame_words(frame) if frame else NO_STACK) + (f"  [{module}]" if module else "")


def as_json(recordings: Sequence[Recording], where: str) -> list[dict[str, Any]]:
    """Return every allocation found, for machines. Raises SearchError."""
    return [_of_recording(recording, allocations(recording, where)) for recording in recordings]


def _of_recording(recording: Recording, found: FoundAllocations) -> dict[str, Any]:
    code = fold(recording.stacks)
    rows = [
        {
            "block_bytes": int(found.block_bytes[row]),
            "category": Category(int(found.category[row])).name.lower(),
            "module": found.paths[int(found.module[row])] or None,
            "alloc_event": int(found.alloc_event[row]) if found.alloc_event[row] >= 0 else None,
            "free_event": int(found.free_event[row]) if found.free_event[row] >= 0 else None,
            "file": frame.file if (frame := code.frame(int(found.stack_id[row]))) else None,
            "line": frame.line if frame else None,
            "function": frame.function if frame else None,
        }
        for row in range(len(found))
    ]
    return {
        "rank": recording.process.rank,
        "device": recording.device.index,
        "count": len(found),
        "total_bytes": found.total_bytes,
        "allocations": rows,
    }


def at_page(found: Sequence[Instant], word: str, top: int) -> Iterator[Block]:
    """Yield what each recording had allocated at the instant that *word* names."""
    when = f"at the {word}" if word.isalpha() else f"after {int(word):,} events"
    for each in found:
        process, device = each.recording.process, each.recording.device
        of = f" (rank {process.rank}, device {device.index})" if len(found) > 1 else ""
        allocated = each.allocated.n_bytes
        yield Heading(f"{format_bytes(allocated)} allocated {when}{of}", level=1)
        below = each.peak_bytes - each.allocated.n_bytes
        parts = [each.allocated.where, f"instant {each.allocated.instant:,}"]
        if each.recording.has_reserved:
            parts.append(f"{format_bytes(each.reserved_bytes)} reserved")
        parts.append(f"{format_bytes(below)} below the peak" if below else "the peak")
        yield Text(", ".join(filter(None, parts)), "quiet")
        for note in each.recording.notes:
            yield Text(note.text, "note")
        if each.live:
            yield live_table(each.live, top, has_holders=True)
        kinds = sorted((each.categories or {}).items(), key=lambda pair: -pair[1])
        words = (
            f"{format_bytes(n)} {name.replace('_', ' ')} ({format_share(n, allocated)})" for name, n in kinds
        )
        yield Text(", ".join(words))
