"""Comparisons of all ranks of a run from their summaries, cached until a summary changes."""

from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import RLock
from time import monotonic, thread_time
from weakref import WeakKeyDictionary
from zlib import crc32

from vramscope.analysis.rank_comparison import Fleet, compare_ranks
from vramscope.analysis.rank_comparison.heat_map import StepTable, step_table
from vramscope.fleet import RanksRead, rank_places, read_ranks
from vramscope.store.directory import is_rank, ranks_of
from vramscope.store.summaries import state_of_files

from ..address import Address
from ..data import Data
from ..runs import MAY_BE_WRITTEN, MOST_OPENED_WHOLE, one_rank, stamp

MAX_RUNS = 3
LOOK_EVERY_S = 4.0
"""The least time between two looks at the files of a run, or at the store that it is in."""
_SHARE = 0.1
"""The largest part of one core for a run that is recorded."""


@dataclass(frozen=True, slots=True)
class RankAnswers:
    """Everything that the page shows of all ranks, at one version of the summaries."""

    version: int
    read: RanksRead
    fleet: Fleet
    table: StepTable


class RankQueries:
    """Answers by run id."""

    def __init__(self, data: Data, *, look_every_s: float = LOOK_EVERY_S, share: float = _SHARE) -> None:
        self._look_every_s, self._share = look_every_s, share
        self._data = data
        self._lock = RLock()
        self._known: OrderedDict[str, tuple[RankAnswers, object, float]] = OrderedDict()
        """The answers, what the files looked like, and when to look again."""

    def get(self, run: str) -> RankAnswers:
        """Return the answers about a run.

        Raises VramscopeError if the run cannot be read.
        """
        place = self._data.runs.location(run)
        with self._lock:
            known = self._known.get(run)
            if known is not None and monotonic() < known[2]:
                return known[0]
            state = _state(place) if isinstance(place, Path) else None
            if known is not None and state is not None and state == known[1]:
                self._known[run] = (known[0], state, monotonic() + self._look_every_s)
                return known[0]
            began = thread_time()
            read = read_ranks(place)
            if known is not None and _fingerprint(read) == _fingerprint(known[0].read):
                found = known[0]
            else:
                summaries = list(read.summaries.values())
                version = known[0].version + 1 if known is not None else 0
                fleet = compare_ranks(summaries, read.restarts)
                found = RankAnswers(version, read, fleet, step_table(summaries))
            pause_s = max(self._look_every_s, (thread_time() - began) / self._share)
            self._known[run] = (found, state, monotonic() + pause_s)
            self._known.move_to_end(run)
            while len(self._known) > MAX_RUNS:
                self._known.popitem(last=False)
            return found

    def most_events(self, run: str) -> float:
        """Return the most events of a rank of an ended run whose comparison is known; else infinity."""
        with self._lock:
            known = self._known.get(run)
        ranks = [] if known is None or known[0].fleet.running else known[0].read.summaries.values()
        return max((device.n_events for rank in ranks for device in rank.devices), default=inf)

    def files(self, run: str) -> int | None:
        """Return what differs once the files of a run differ; None while it is written, and of many ranks.

        A thousand ranks have some 5,000 files, too many to look at in every tick.
        """
        with self._lock:
            known = self._known.get(run)
        if known is None or len(known[0].read.summaries) > MOST_OPENED_WHOLE:
            return None
        outcomes = {each.outcome for each in known[0].read.summaries.values()}
        if outcomes & MAY_BE_WRITTEN:
            return None
        return crc32(repr(stamp(self._data.runs.path(run))).encode())


_of_data: WeakKeyDictionary[Data, RankQueries] = WeakKeyDictionary()
_lock = RLock()


def queries_of(data: Data) -> RankQueries:
    """Return the queries about the runs of *data*: the page and its callbacks share them."""
    with _lock:
        return _of_data.setdefault(data, RankQueries(data))


def opened_address(data: Data, address: Address) -> Address:
    """Return *address*, of a run of very many ranks that of one rank: no page reads the events of them all.

    That is the rank that the address names, else the first one that failed or differs, else a typical one.
    Raises VramscopeError if the run cannot be read.
    """
    path = data.runs.paths().get(address.run)
    if path is None or not path.is_dir() or data.is_open(address.run):
        return address
    # Of a run in a store, manifests and summaries are copied, so that its ranks are known.
    if len(rank_places(data.runs.location(address.run))[1]) <= MOST_OPENED_WHOLE:
        return address
    rank = address.rank
    if rank is None:
        fleet = queries_of(data).get(address.run).fleet
        named = [fleet.failure.rank] if fleet.failure is not None else []
        named += [odd.rank for odd in fleet.odd] + [each.rank for each in fleet.ended]
        named += [group.typical[0] for group in fleet.groups]
        rank = next(iter(named), 0)
    return address.go(run=one_rank(address.run, rank), rank=None)


def _fingerprint(read: RanksRead) -> object:
    """Return what differs between two readings of a run if any summary does."""
    return [
        (rank, each.outcome, each.ended_ns, *(device.n_events for device in each.devices))
        for rank, each in read.summaries.items()
    ]


def _state(run: Path) -> object:
    """Return what changes when a summary is written or a rank ends."""
    return [(rank.name, state_of_files(rank)) for rank in ([run] if is_rank(run) else ranks_of(run))]
