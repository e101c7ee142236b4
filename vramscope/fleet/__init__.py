"""All ranks of a run at once: their summaries are read, made where they are missing, and compared.

The work on each rank is a function of its directory, so any engine can map it: this process, a pool of
processes here, or Ray.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vramscope.analysis.findings import Shared, ranked_rows, shared
from vramscope.analysis.rank_comparison import Fleet, compare_ranks
from vramscope.conversion_cache import cached_summary
from vramscope.errors import StoreError, UnknownNameError, UsageError, VramscopeError
from vramscope.following.rank_summary import device_summary
from vramscope.loading import format_of_file, load
from vramscope.model.finding import Located
from vramscope.model.rank_summary import RankSummary
from vramscope.model.recording import Outcome, Run
from vramscope.remote import local_path
from vramscope.remote.copies import RemoteRank, copied_summaries
from vramscope.store import manifest as manifests
from vramscope.store.directory import MANIFEST, attempts_of, is_rank, ranks_of
from vramscope.store.summaries import SUMMARY_FILE, StoredSummary, events_bytes, read_summary, write_summary

Engine = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Maps a function over inputs and yields the results in the order of the inputs, like ``map``."""

RankPlace = Path | RemoteRank
"""Where a rank is: its directory, or its place in a store with a copy of its summary."""

_ALL_SEARCHED_EVENTS = 2_000_000
"""The most events of all ranks together that are searched for findings; of more, representatives are."""
_MOST_REPRESENTATIVES = 12
_BATCHES = 64
"""The number of batches that the ranks are handed to the engine in."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run with its ranks compared."""

    path: str
    fleet: Fleet
    summaries: tuple[RankSummary, ...]
    """One per rank, ascending."""
    directories: Mapping[int, Path | str]
    """The directory or the URL of each rank that can be read."""
    unreadable: tuple[tuple[int, str], ...]
    """Ranks whose directory cannot be read, with the reason."""
    findings: tuple[Shared, ...]
    """The findings of the searched ranks, each once, with all ranks that have it; the gravest first."""
    searched: tuple[int, ...]
    """The ranks that were searched for findings."""


def compared_run(path: str | Path, engine: Engine = map, *, all_findings: bool = False) -> ComparedRun:
    """Read and compare all ranks of the run at *path*.

    Of a URL summaries are copied, and whole ranks only where one must be made. With *all_findings* every rank
    is searched for findings, however many events there are. Raises UnknownNameError if there is nothing at
    *path*, StoreError if there is no run or none of its ranks can be read.
    """
    read = read_ranks(path, engine)
    ordered = [(read.places[rank], summary) for rank, summary in read.summaries.items()]
    fleet = compare_ranks(list(read.summaries.values()), read.restarts)
    chosen = _searched(fleet, [summary for _, summary in ordered], all_findings=all_findings)
    wanted = [place for place, summary in ordered if summary.process.rank in chosen]
    rows = [row for each in _in_batches(engine, findings_of_rank, wanted) for row in each]
    return ComparedRun(
        str(path),
        fleet,
        tuple(read.summaries.values()),
        {rank: place.url if isinstance(place, RemoteRank) else place for rank, place in read.places.items()},
        read.unreadable,
        tuple(shared(ranked_rows(rows))),
        tuple(sorted(chosen)),
    )


@dataclass(frozen=True, slots=True)
class RanksRead:
    """The summaries of a run, read and not yet compared."""

    summaries: Mapping[int, RankSummary]
    """The summaries in ascending order of their ranks."""
    places: Mapping[int, RankPlace]
    """The place of each of them, in the same order."""
    unreadable: tuple[tuple[int, str], ...]
    """Ranks whose directory cannot be read, with the reason."""
    restarts: Mapping[int, int]
    """The number of restarts, by rank, of ranks that were restarted."""


def read_ranks(path: str | Path, engine: Engine = map) -> RanksRead:
    """Read the summaries of all ranks of the run at *path*, and make those that are missing.

    Raises UnknownNameError if there is nothing at *path*, StoreError if there is no run or none of its ranks
    can be read.
    """
    directory, ranks = rank_places(path)
    found: dict[int, tuple[RankPlace, RankSummary]] = {}
    unreadable: list[tuple[int, str]] = []
    for rank, summary in zip(ranks, _summaries(ranks, engine), strict=True):
        if not isinstance(summary, RankSummary):
            unreadable.append((_number(rank), summary))
        elif summary.process.rank in found:
            original = found[summary.process.rank][0].name
            shown = rank.url if isinstance(rank, RemoteRank) else str(rank)
            text = f"{shown}: has the data of {original}, and is not counted twice"
            unreadable.append((_number(rank), text))
        else:
            found[summary.process.rank] = rank, summary
    if not found:
        raise StoreError(unreadable[0][1] if unreadable else f"{path}: no run was recorded here")
    ordered = sorted(found)
    return RanksRead(
        {rank: found[rank][1] for rank in ordered},
        {rank: found[rank][0] for rank in ordered},
        tuple(unreadable),
        {rank: n - 1 for rank, n in attempts_of(directory).items() if n > 1},
    )


def rank_places(path: str | Path) -> tuple[Path, list[RankPlace]]:
    """Find the ranks of the run at *path*, the last attempt of each.

    It may be one of its ranks, and a URL. Returns the directory of the run, that of its copy for a URL, and
    its ranks in order. Raises UnknownNameError if there is nothing at *path*, UsageError or
    FormatError if it is a file, StoreError if the store of a URL is not reached, or refuses.
    """
    directory = local_path(path)
    remote: Mapping[Path, RemoteRank] = {}
    if directory is None:
        directory, remote = copied_summaries(str(path))
    elif not directory.exists():
        raise UnknownNameError(f"{path}: there is nothing; give the directory of a run")
    if not directory.is_dir():
        kind, advice = format_of_file(directory).name, f"vramscope report {path} says what is in it"
        raise UsageError(f"{path}: a file ({kind}), and no run whose ranks could be compared; {advice}")
    ranks = [directory] if is_rank(directory) else ranks_of(directory)
    return directory, [remote.get(rank, rank) for rank in ranks]


def _number(rank: RankPlace) -> int:
    digits = "".join(filter(str.isdigit, rank.name.partition("-")[0]))
    return int(digits) if digits else 0


def _summaries(ranks: Sequence[RankPlace], engine: Engine) -> Iterator[RankSummary | str]:
    """The summary of each rank, or why there is none; only those that must be made go to the engine."""
    known = [known_summary(rank) for rank in ranks]
    missing = [rank for rank, stored in zip(ranks, known, strict=True) if stored is None]
    made = iter(_in_batches(engine, _made_or_why, missing))
    for stored in known:
        yield next(made) if stored is None else stored.summary


def _in_batches(
    engine: Engine, work: Callable[[RankPlace], Any], ranks: Sequence[RankPlace]
) -> Iterator[Any]:
    if not ranks:
        return
    size = -(-len(ranks) // _BATCHES)
    batches = [list(ranks[first : first + size]) for first in range(0, len(ranks), size)]
    for results in engine(partial(_worked, work), batches):
        yield from results


def _worked(work: Callable[[RankPlace], Any], batch: Sequence[RankPlace]) -> list[Any]:
    return [work(rank) for rank in batch]


def known_summary(rank: RankPlace) -> StoredSummary | None:
    """The summary in the directory of a rank or made by a reader before, if it is up to date.

    That of a running process is at most a minute old; None where one must be made.
    """
    directory = rank.copy if isinstance(rank, RemoteRank) else rank
    size = rank.events_bytes if isinstance(rank, RemoteRank) else None
    for path in (_kept(directory), directory / SUMMARY_FILE):
        stored = None if path is None else read_summary(path)
        if stored is None:
            continue
        if not stored.is_final:
            return stored if _is_running(directory, stored) else None
        size = events_bytes(directory) if size is None else size
        # A directory with summaries alone is what is left of a run whose events were deleted.
        if size in (0, stored.events_bytes):
            return stored
    return None


def _is_running(rank: Path, stored: StoredSummary) -> bool:
    from vramscope.store.read.rank import RankReader

    with suppress(StoreError):
        if manifests.read(rank / MANIFEST).outcome is Outcome.RUNNING:
            reader = RankReader(rank)
            return reader.manifest.id == stored.trace and reader.is_running()
    return False


def _made_or_why(rank: RankPlace) -> RankSummary | str:
    try:
        return made_summary(_whole(rank))
    except VramscopeError as error:
        return str(error)


def _whole(rank: RankPlace) -> Path:
    """The directory of a rank; from a store the rank is copied first."""
    return rank.whole() if isinstance(rank, RemoteRank) else rank


def made_summary(rank: Path) -> RankSummary:
    """The summary of a rank, made from its whole trace; cached if the process has ended.

    Takes 0.5 s per million events. Raises VramscopeError if the trace cannot be read.
    """
    return read_and_summed(rank)[1]


def read_and_summed(rank: Path) -> tuple[Run, RankSummary]:
    """A rank as a run of its own, and its summary made from that, as ``made_summary`` returns it."""
    size = events_bytes(rank)
    run = load(rank)
    manifest = manifests.read(rank / MANIFEST)
    summary = RankSummary(
        process=manifest.process,
        outcome=run.outcome,
        error=run.error,
        started_ns=run.started_ns,
        ended_ns=run.ended_ns,
        devices=tuple(device_summary(recording) for recording in run.recordings),
    )
    _keep(
        rank, StoredSummary(summary, manifest.id, is_final=True, events_bytes=size, written_ns=run.ended_ns)
    )
    return run, summary


def _keep(rank: Path, stored: StoredSummary) -> None:
    """Keep a summary for the next reader, unless its trace is still written or nothing is cached.

    It never goes beside the trace: what is read stays as it is.
    """
    path = _kept(rank)
    if path is not None and stored.summary.outcome is not Outcome.RUNNING and stored.events_bytes:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_summary(path, stored)


def _kept(rank: Path) -> Path | None:
    try:
        status = (rank / MANIFEST).stat()
    except OSError:
        return None
    return cached_summary(rank, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


def _searched(fleet: Fleet, summaries: Sequence[RankSummary], *, all_findings: bool) -> set[int]:
    """The ranks to search for findings: all, or of very many events those that stand for the others."""
    n_events = sum(device.n_events for summary in summaries for device in summary.devices)
    if all_findings or n_events <= _ALL_SEARCHED_EVENTS:
        return {summary.process.rank for summary in summaries}
    wanted = [fleet.failure.rank] if fleet.failure is not None else []
    wanted += [group.typical.rank for group in fleet.groups]
    wanted += [odd.rank for odd in fleet.odd]
    wanted += [each.rank for each in fleet.ended]
    return set(list(dict.fromkeys(wanted))[:_MOST_REPRESENTATIVES])


def findings_of_rank(rank: RankPlace) -> list[Located]:
    """The findings of one rank; they are cached with its summary."""
    stored = known_summary(rank)
    if stored is None or any(device.findings is None for device in stored.summary.devices):
        try:
            directory = _whole(rank)
            run = load(directory)
        except VramscopeError:
            return []
        if stored is None:
            return [
                Located(replace(finding, evidence={}), recording.process.rank, recording.device.index)
                for recording in run.recordings
                for finding in recording.findings()
            ]
        stored = replace(stored, summary=_with_findings(stored.summary, run))
        if stored.is_final:
            _keep(directory, stored)
    return [
        Located(finding, stored.summary.process.rank, device.device.index)
        for device in stored.summary.devices
        for finding in device.findings or ()
    ]


def _with_findings(summary: RankSummary, run: Run) -> RankSummary:
    # What is kept in the file has no evidence, so this has none either: the first answer equals the next.
    kept = {
        recording.device.index: tuple(
            replace(each, kind=str(each.kind), severity=str(each.severity), evidence={})
            for each in recording.findings()
        )
        for recording in run.recordings
    }
    devices = (replace(each, findings=kept.get(each.device.index, ())) for each in summary.devices)
    return replace(summary, devices=tuple(devices))
