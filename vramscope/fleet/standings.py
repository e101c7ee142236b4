"""How every rank of the runs below a folder stands now, for a table that is renewed while they run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, thread_time
from typing import NamedTuple

from vramscope.analysis.forecast import NOTHING_KNOWN, Outlook, forecast, forecast_of_summary, room_of_summary
from vramscope.analysis.pace import StepPace, pace_of_rows
from vramscope.errors import UnknownNameError, VramscopeError
from vramscope.fleet import findings_of_rank, known_summary, read_and_summed
from vramscope.loading import discover
from vramscope.model.codes import Severity
from vramscope.model.finding import Finding
from vramscope.model.rank_summary import DeviceSummary, RankSummary
from vramscope.model.recording import Outcome
from vramscope.store.directory import is_rank, ranks_of
from vramscope.store.summaries import events_bytes, state_of_files

_READ_WHOLE_BYTES = 2 << 20
"""The size of the events of a running rank up to which it is read itself: some 100,000 to 600,000 events.

Of a larger one its summary is read, which its recorder renews each minute: memory and time stay the same."""
_SEARCHED_EVENTS = 2_000_000
"""The most events of a rank that has ended which are searched for findings, once; they are then kept."""
_PAUSE = 10
"""The least pause until a rank is read again, as a multiple of the time of reading it."""
_LEAST_PAUSE_S, _QUIET_S = 1.0, 5.0
"""Seconds between two readings of a rank; the second where its files stay the same: it may have died."""


@dataclass(frozen=True, slots=True)
class RankStanding:
    """One rank on one device; None and '' where something is not known."""

    run: str
    """The run's directory below the folder."""
    rank: str
    """The rank, with the device where that is not 0: ``3``, ``0.1``."""
    outcome: Outcome | None = None
    error: str = ""
    """Why the rank cannot be read, or what ended its program."""
    started_ns: int = 0
    seen_ns: int = 0
    """When the figures were true."""
    host: str = ""
    level_bytes: int | None = None
    peak_bytes: int | None = None
    is_exact: bool = True
    """Whether the peak is exact, and no lower bound."""
    share: float | None = None
    """The peak of reserved bytes, as a part of what torch may reserve."""
    pace: StepPace | None = None
    outlook: Outlook = NOTHING_KNOWN
    finding: Finding | None = None
    """The newest error or warning; of those that are as new the gravest."""


class _LastLook(NamedTuple):
    """What was read of one rank, and when to look again."""

    rows: tuple[RankStanding, ...]
    files: object
    again_s: float


class Standings:
    """The rows of all ranks of the runs at or below one folder."""

    def __init__(self, root: Path) -> None:
        """Raise UnknownNameError where there is no folder *root*."""
        if not root.is_dir():
            raise UnknownNameError(f"{root}: no folder; give one with runs, or the directory of a run")
        self._root = root.resolve()
        self._known: dict[Path, _LastLook] = {}
        self._seen: dict[tuple[Path, str], list[tuple[object, ...]]] = {}
        """What was found before of each row, in the order in which it was."""

    def rows(self) -> list[RankStanding]:
        """Return all rows, as they were read last."""
        return [row for known in list(self._known.values()) for row in known.rows]

    def look(self) -> None:
        """Read what is new since the last call; what cannot be read is a row that says so."""
        # Recorded runs alone: the files of other tools do not run.
        runs = [run for run in discover(self._root, most_files=0) if run.is_dir()]
        ranks = {rank: run for run in runs for rank in ([run] if is_rank(run) else ranks_of(run))}
        for gone in self._known.keys() - ranks.keys():
            del self._known[gone]
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in ranks}
        for rank, run in ranks.items():
            self._look_at(rank, run)

    def _look_at(self, rank: Path, run: Path) -> None:
        known, files = self._known.get(rank), (events_bytes(rank), state_of_files(rank))
        is_same = known is not None and known.files == files
        if known is not None:
            runs = any(row.outcome is Outcome.RUNNING for row in known.rows)
            if monotonic() < known.again_s or (is_same and not runs):
                return
        began_s = thread_time()
        rows = self._read(rank, self._root.name if run == self._root else str(run.relative_to(self._root)))
        pause_s = max(_PAUSE * (thread_time() - began_s), _QUIET_S if is_same else _LEAST_PAUSE_S)
        self._known[rank] = _LastLook(rows, files, monotonic() + pause_s)

    def _read(self, rank: Path, name: str) -> tuple[RankStanding, ...]:
        number = rank.name.removeprefix("rank")
        try:
            rows = _standings(rank, RankStanding(name, number))
        except (VramscopeError, OSError) as error:
            return (RankStanding(name, number, error=str(error)),)
        # An odd file must not end the table.
        except Exception as error:  # noqa: BLE001
            return (RankStanding(name, number, error=f"{type(error).__name__} in vramscope while reading"),)
        return tuple(replace(row, finding=self._newest(rank, row.rank, found)) for row, found in rows)

    def _newest(self, rank: Path, row: str, found: Sequence[Finding]) -> Finding | None:
        grave = [each for each in found if each.severity in (Severity.ERROR, Severity.WARNING)]
        # The claim has numbers that change while the run goes on.
        names: dict[tuple[object, ...], Finding] = {}
        for each in grave:
            names.setdefault((each.kind, each.file, each.line), each)
        seen = self._seen.setdefault((rank, row), [])
        new = [name for name in names if name not in seen]
        seen[:] = [*new, *(name for name in seen if name in names)]
        return names[seen[0]] if seen else None


def _standings(rank: Path, blank: RankStanding) -> Iterable[tuple[RankStanding, Sequence[Finding]]]:
    """Return the row of each device with its findings, those of a summary or of the rank itself."""
    stored = known_summary(rank)
    if stored is not None and (stored.is_final or events_bytes(rank) > _READ_WHOLE_BYTES):
        summary = stored.summary
        located = findings_of_rank(rank) if _is_searched(summary, is_final=stored.is_final) else []
        return [
            (
                _standing(blank, summary, device, stored.written_ns),
                [each.finding for each in located if each.device == device.device.index],
            )
            for device in summary.devices
        ]
    run, summary = read_and_summed(rank)
    is_live = run.outcome is Outcome.RUNNING
    rows = []
    for recording, device in zip(run.recordings, summary.devices, strict=True):
        row = _standing(blank, summary, device, run.ended_ns)
        row = replace(row, outlook=forecast(recording)) if is_live else row
        rows.append((row, recording.findings()))
    return rows


def _is_searched(summary: RankSummary, *, is_final: bool) -> bool:
    n_events = sum(device.n_events for device in summary.devices)
    is_kept = all(device.findings is not None for device in summary.devices)
    return is_final and (is_kept or n_events <= _SEARCHED_EVENTS)


def _standing(blank: RankStanding, summary: RankSummary, device: DeviceSummary, seen_ns: int) -> RankStanding:
    room, reserved = room_of_summary(device), device.peak.get("reserved")
    peak = device.peak.get("allocated")
    is_live = summary.outcome is Outcome.RUNNING
    number = f".{device.device.index}" if device.device.index else ""
    return replace(
        blank,
        rank=f"{summary.process.rank}{number}",
        outcome=summary.outcome,
        error=summary.error,
        started_ns=summary.started_ns,
        seen_ns=seen_ns,
        host=summary.process.host,
        level_bytes=device.end.get("allocated"),
        peak_bytes=peak.n_bytes if peak is not None else None,
        is_exact=device.is_exact,
        share=reserved.n_bytes / room.limit_bytes if room is not None and reserved is not None else None,
        pace=pace_of_rows(device.steps),
        outlook=forecast_of_summary(device, summary.process) if is_live else NOTHING_KNOWN,
    )
