"""Reads a run directory as far as it is written, however the run ended, and more as it grows."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import pyarrow.compute  # noqa: F401 -- a cast does so late by itself

from vramscope.columns.scratch import Scratch
from vramscope.errors import StoreError
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome, Run
from vramscope.store.directory import is_rank, ranks_of
from vramscope.store.read.rank import RankReader

_APART_NS = 3600 * 10**9
"""The longest time between the starts of two ranks of one run."""

_WORST_FIRST = (Outcome.RUNNING, Outcome.FAILED, Outcome.DIED)


class Reader:
    """Reads a run directory, or the directory of a single rank, as far as it is written.

    ``refresh`` reads only what is new; ``run`` is the run so far. It may be used from several threads.
    """

    def __init__(self, path: Path, scratch: Scratch | None = None) -> None:
        """Open *path*; a run that grows is kept in *scratch*.

        Raises StoreError if there is no run that this version can read.
        """
        self.path = path
        self._scratch = scratch
        self._lock = Lock()
        self._ranks: dict[Path, RankReader] = {}
        self._refused: dict[Path, StoreError] = {}
        self._run: Run | None = None
        self.refresh()
        if not self._ranks:
            raise next(iter(self._refused.values()), None) or StoreError(f"{path}: no run was recorded here")

    def refresh(self) -> bool:
        """Read what was written since the last call; return whether anything is new."""
        with self._lock:
            found = self._find_ranks()
            # Every rank is refreshed: any() without a list would stop at the first.
            grown = [rank.refresh() for rank in self._ranks.values()]
            changed = found or any(grown)
            if changed:
                self._run = None
            return changed

    @property
    def run(self) -> Run:
        """The run as far as it was read; the same object until a refresh finds more."""
        with self._lock:
            if self._run is None:
                self._run = self._build()
            return self._run

    def _find_ranks(self) -> bool:
        before = len(self._ranks), len(self._refused)
        for directory in [self.path] if is_rank(self.path) else ranks_of(self.path):
            if directory in self._ranks:
                continue
            try:
                self._ranks[directory] = self._only_once(RankReader(directory, self._scratch))
                self._refused.pop(directory, None)
            except StoreError as error:
                self._refused[directory] = error
        return before != (len(self._ranks), len(self._refused))

    def _only_once(self, rank: RankReader) -> RankReader:
        """Return *rank*. Raises StoreError if it is a copy of another rank of this run."""
        for other in self._ranks.values():
            if rank.manifest.id and rank.manifest.id == other.manifest.id:
                names = rank.directory.name, other.directory.name
                raise StoreError(
                    f"{rank.directory}: {names[0]} is a copy of {names[1]}; it is not counted twice"
                )
        return rank

    def _build(self) -> Run:
        ranks = list(self._ranks.values())
        outcomes = {rank.outcome for rank in ranks}
        return Run(
            name=self._name(),
            path=str(self.path),
            recordings=tuple(recording for rank in ranks for recording in rank.recordings()),
            outcome=next((outcome for outcome in _WORST_FIRST if outcome in outcomes), Outcome.FINISHED),
            started_ns=min((r.manifest.started_ns for r in ranks if r.manifest.started_ns), default=0),
            ended_ns=max(rank.ended_ns() for rank in ranks),
            error=self._error(ranks),
            notes=tuple(self._notes(ranks)),
        )

    def _name(self) -> str:
        path = self.path.resolve()
        return f"{path.parent.name}/{path.name}" if is_rank(path) else path.name

    def _error(self, ranks: list[RankReader]) -> str:
        errors = [(rank.manifest.process.rank, rank.manifest.error) for rank in ranks if rank.manifest.error]
        if not errors:
            return ""
        return errors[0][1] if len(ranks) == 1 else f"rank {errors[0][0]}: {errors[0][1]}"

    def _notes(self, ranks: list[RankReader]) -> Iterator[Note]:
        for error in self._refused.values():
            yield Note(NoteCode.RANK_UNREADABLE, str(error))
        for rank in ranks:
            if not rank.has_devices:  # with devices, each of their recordings has these notes
                yield from rank.notes()
        yield from _strangers(ranks)
        expected = max(rank.manifest.process.world_size for rank in ranks)
        if len(ranks) < expected and not is_rank(self.path):
            missing = expected - len(ranks)
            yield Note(NoteCode.RANKS_MISSING, f"{len(ranks)} of {expected} ranks are here", missing)


def _strangers(ranks: list[RankReader]) -> Iterator[Note]:
    """Yield a note if the ranks were never recorded together."""
    spans = {rank.directory.name: (rank.manifest.started_ns, rank.ended_ns()) for rank in ranks}
    known = {name: span for name, span in spans.items() if 0 < span[0] <= span[1]}
    late = max((start for start, _ in known.values()), default=0)
    early = [name for name, (_, end) in known.items() if end + _APART_NS < late]
    if early:
        last = next(name for name, (start, _) in known.items() if start == late)
        text = f"{', '.join(early[:3])} ended an hour or more before {last} began: they are not of one run"
        yield Note(NoteCode.RANKS_DIFFER, text, len(early))
    sizes = {rank.manifest.process.world_size for rank in ranks}
    if len(sizes) > 1:
        shown = ", ".join(map(str, sorted(sizes)[:5]))
        yield Note(
            NoteCode.RANKS_DIFFER, f"the ranks name different world sizes ({shown}): they are not of one run"
        )
