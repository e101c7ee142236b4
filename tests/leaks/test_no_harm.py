"""Looking for holders changes nothing: no reference stays, no code of the program runs, a leak is as large as
without us."""

import gc
import sys
import weakref
from collections import Counter, OrderedDict, deque
from itertools import count

import pytest
import torch

from vramscope.capture import Options, holders
from vramscope.capture.holders import growth_watch, search
from vramscope.capture.holders.parts import (
    PlainData,
    ends_of_dict,
    ends_of_sequence,
    some_of_set,
)
from vramscope.capture.simulated import Simulated


class Listless:
    """A sink that keeps nothing."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def levels(n_steps):
    """Bytes allocated after each step of a training that keeps its losses with their graphs."""
    gc.collect()
    failures = []
    capture = Simulated(Options(), failures.append)
    capture.start(Listless())
    capture.enter_thread()
    before = capture.allocated_bytes()
    try:
        found = list(training(capture, n_steps))
    finally:
        capture.exit_thread()
        capture.pause()
        capture.abandon()
    assert failures == []
    return [level - before for level in found], capture.watch.n_walks


def training(capture, n_steps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for _ in range(n_steps):
        loss = model(torch.randn(64, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)
        yield capture.allocated_bytes()


# Tensors that another test left and that were frozen since are known from the start, not first to the search.
@pytest.mark.usefixtures("freezing")
def test_a_leak_is_the_same_size_with_us_watching(monkeypatch):
    watched, n_walks = levels(30)
    monkeypatch.setattr(growth_watch.Watch, "tick", lambda *_: None)
    unwatched, none = levels(30)

    assert n_walks >= 2
    assert none == 0
    assert watched == unwatched


def test_a_walk_leaves_no_reference():
    held = {"list": [torch.zeros(1000)], "graph": torch.ones(3, requires_grad=True).exp()}
    dead = torch.zeros(2000)
    things = [held, held["list"], held["list"][0], held["graph"], dead]
    before = [sys.getrefcount(thing) for thing in things]
    found = search(10.0, sys._getframe())
    storages = {way.storage._cdata for way in found.ways}
    assert held["list"][0].untyped_storage()._cdata in storages
    del found, storages
    after = [sys.getrefcount(thing) for thing in things]

    assert after == before


def test_a_local_variable_that_was_seen_dies_when_its_function_lets_go_of_it():
    """Up to Python 3.12 a frame keeps the dict of its locals that somebody asked for."""

    class Thing:
        pass

    def function():
        local = Thing()
        reference = weakref.ref(local)
        search(5.0, sys._getframe())
        local = None
        return reference()

    assert function() is None


def test_a_tensor_deep_in_plain_data_is_reached():
    data = {"rows": [[{"n": [n]} for n in range(30)] for _ in range(30)], "set": {1, 2}, "pair": (1, (2, 3))}
    data["self"] = [data]
    hidden = [torch.zeros(10) for _ in range(4)]
    data["rows"][29][29]["n"].append(hidden[0])
    data["rows"][3][7][frozenset({1})] = (1, [hidden[1]])
    data["queue"] = deque([[], {"last": hidden[2]}])
    data["ordered"] = OrderedDict(last={"last": hidden[3]})
    found = {way.storage._cdata for way in search(10.0, sys._getframe()).ways}

    assert {each.untyped_storage()._cdata for each in hidden} <= found


def test_plain_data_is_told_from_what_holds_anything_else():
    circle = []
    circle.append(circle)
    many = [[[n]] for n in range(PlainData.MOST)]
    plain = [{}, [], (1, "a", None), {"a": [{1: (2.5, b"x")}]}, circle, [circle, {"a": circle}], deque([[1]])]
    others = [
        [torch.zeros(1)],
        {"a": [[object()]]},
        [[lambda: 1]],
        OrderedDict(),
        [{1: OrderedDict()}],
        many,
        1,
    ]

    assert [each in PlainData() for each in plain] == [True] * len(plain)
    assert [each in PlainData() for each in others] == [False] * len(others)


class Row:
    def __init__(self, number, held=None):
        self.number, self.held, self.self = number, held, self


class SlottedRow:
    __slots__ = ("held", "number")

    def __init__(self, number, held=None):
        self.number, self.held = number, held


@pytest.mark.parametrize("kind", [Row, SlottedRow])
def test_at_an_end_objects_of_plain_data_are_not_walked_one_by_one(kind):
    hidden = [torch.zeros(10) for _ in range(2)]
    _, n_without = ways_and_calls()  # of whatever else this process has
    plain = [[kind(n, [n]) for n in range(1000)] for _ in range(20)]
    others = [[kind(1), kind(2, (hidden[0],))], {"last": [kind(3, kind(4, hidden[1]))]}]
    ways, n_with = ways_and_calls()

    assert {each.untyped_storage()._cdata for each in hidden} <= {way.storage._cdata for way in ways}
    assert n_with - n_without < sum(map(len, plain)) / 2
    assert len(others) == 2


def ways_and_calls():
    calls = Counter()
    with_count = lambda *things: calls.update(n=1) or referents(*things)  # noqa: E731
    referents, gc.get_referents = gc.get_referents, with_count
    try:
        return search(10.0, sys._getframe(1), at_end=True).ways, calls["n"]
    finally:
        gc.get_referents = referents


def test_a_large_tree_is_not_looked_through_once_the_time_is_over():
    tree = [[[n] for n in range(PlainData.MOST // 8)]]

    assert tree in PlainData()
    assert tree not in PlainData(lambda: True)


def test_plain_data_that_refers_to_itself_is_not_looked_through_again_and_again():
    nodes = [{"parent": None, "children": []}]
    for at in range(1, 100_000):
        nodes.append({"parent": nodes[at // 3], "children": []})
        nodes[at // 3]["children"].append(nodes[-1])
    looks = PlainData()
    calls = Counter()
    with_count = lambda *containers: calls.update(n=len(containers)) or referents(*containers)  # noqa: E731
    referents, gc.get_referents = gc.get_referents, with_count
    try:
        assert not any(node in looks for node in nodes if node["children"])
    finally:
        gc.get_referents = referents

    assert calls["n"] < 20 * len(nodes)


def test_the_program_s_own_locals_dict_is_left_as_it_is():
    value = 1
    mine = locals()
    search(5.0, sys._getframe())

    assert mine["value"] is value


class Touchy:
    """Does not want to be asked anything."""

    def __getattribute__(self, name):
        if name not in ("__class__", "__dict__"):
            raise AssertionError(f"asked for {name}")
        return object.__getattribute__(self, name)

    def __repr__(self):
        raise AssertionError("asked for its words")

    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = object.__hash__
    __iter__ = __len__ = __bool__ = __repr__


def test_a_stranger_s_object_is_asked_nothing():
    touchy = Touchy()
    object.__getattribute__(touchy, "__dict__")["tensor"] = torch.zeros(777)
    keyed = {touchy: torch.zeros(778)}
    found = search(10.0, sys._getframe())
    sizes = {way.storage.nbytes() for way in found.ways}

    assert {777 * 4, 778 * 4} <= sizes
    assert len(keyed) == 1


def test_saved_tensors_are_not_unpacked():
    def unpack(_):
        raise AssertionError("unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), unpack):
        result = torch.ones(999, requires_grad=True).exp()
    found = search(10.0, sys._getframe())

    assert result is not None
    assert any(way.storage.nbytes() == 999 * 4 for way in found.ways)


def test_a_proxy_is_not_asked_for_its_class():
    class Proxy:
        @property
        def __class__(self):
            raise AssertionError("asked for its class")

    proxy = Proxy()
    object.__getattribute__(proxy, "__dict__")["tensor"] = torch.zeros(779)
    found = search(10.0, sys._getframe())

    assert any(way.storage.nbytes() == 779 * 4 for way in found.ways)


def test_a_subclass_of_a_list_is_not_asked_for_its_items():
    class Loud(list):
        def __iter__(self):
            raise AssertionError("iterated")

        __len__ = __getitem__ = __reversed__ = __iter__

    loud = Loud([torch.zeros(781)])
    found = search(10.0, sys._getframe())

    assert loud is not None
    assert any(way.storage.nbytes() == 781 * 4 for way in found.ways)


@pytest.mark.parametrize("large", [list, tuple, deque, dict.fromkeys, set], ids=lambda kind: kind.__name__)
def test_of_a_container_of_a_million_only_some_are_met_and_the_newest(large):
    """An item takes a microsecond: without a bound a few millions would take the seconds there are."""
    newest = torch.zeros(787)
    held = large([*range(1_000_000), newest])
    meeting = len(ends_of(held))

    assert meeting == 4000
    assert isinstance(held, set) or ends_of(held)[-1] is newest


def ends_of(held):
    if isinstance(held, dict):
        return [key for key, _ in ends_of_dict(held)]
    return some_of_set(held) if isinstance(held, set) else [value for _, value in ends_of_sequence(held)]


def test_items_of_a_large_container_keep_their_numbers():
    numbers = list(range(10_000))

    assert all(number == value for number, value in ends_of_sequence(numbers))
    assert all(number == value for number, value in ends_of_sequence(deque(numbers)))


def test_a_data_set_in_memory_does_not_hide_what_is_beside_it(monkeypatch):
    """The time is over (by a clock that ticks every 64 objects) before the walk has been through the data."""
    data = [[[object()] for _ in range(3000)] for _ in range(300)]
    beside = [torch.zeros(797) for _ in range(20)]
    monkeypatch.setattr(holders, "thread_time", lambda: 0.0)
    monkeypatch.setattr(holders, "perf_counter", count().__next__)
    found = search(4000.0 / holders._MOST_CLOCK, sys._getframe())

    assert not found.is_complete
    assert len(data) == 300
    assert sum(way.storage.nbytes() == beside[0].nbytes for way in found.ways) == 20


@pytest.mark.parametrize(("times", "is_complete"), [(15, True), (25, False)])
def test_a_busy_machine_does_not_end_the_search_unless_it_takes_twenty_times_as_long(
    monkeypatch, times, is_complete
):
    """Other programs take the processor: the clock goes on, this thread's own time does not."""
    clock = iter([0.0])
    monkeypatch.setattr(holders, "thread_time", lambda: 0.0)
    monkeypatch.setattr(holders, "perf_counter", lambda: next(clock, times * 1000.0))

    assert search(1000.0, sys._getframe()).is_complete is is_complete


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled):
    try:
        (gc.enable if enabled else gc.disable)()
        search(0.1, sys._getframe())

        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_walk_ends_at_its_deadline():
    many = [[torch.zeros(1)] for _ in range(200_000)]
    found = search(0.0, sys._getframe())

    assert not found.is_complete
    assert len(found.ways) < len(many)


@pytest.mark.parametrize("n_steps", [5, 6])
def test_nothing_is_looked_for_before_the_seventh_level(n_steps):
    assert levels(n_steps)[1] == 0


def test_a_loop_that_does_not_grow_is_never_walked():
    watch = growth_watch.Watch(iter(range(0, 10**9, 8)).__next__, lambda *_: True)
    for _ in range(1000):
        watch.tick("optimizer", 1, None)

    assert watch.n_walks == 0


def test_a_number_kept_in_each_step_is_looked_for_once(monkeypatch):
    searches = []
    monkeypatch.setattr(growth_watch, "search", lambda *_: searches.append(0) or EMPTY)
    watch = growth_watch.Watch(iter(range(0, 10**9, 512)).__next__, lambda *_: True)
    for _ in range(20):
        watch.tick("optimizer", 1, None)

    assert len(searches) == 1
    assert watch.n_walks == 0


def test_walks_become_rare_and_end(monkeypatch):
    monkeypatch.setattr(growth_watch, "search", lambda *_: EMPTY)
    watch = growth_watch.Watch(iter(range(0, 10**12, 1 << 20)).__next__, lambda *_: True)
    at = []
    for step in range(1, 3000):
        before = watch.n_walks
        watch.tick("optimizer", 1, None)
        if watch.n_walks > before:
            at.append(step)

    assert at == [7, 21, 63, 189, 567, 1701]


class EMPTY:
    ways = ()
    is_complete = True


@pytest.fixture
def kept_by_the_session(request):
    """The storage of a tensor that only the session of all tests holds."""
    request.session.kept = torch.zeros(8)
    yield request.session.kept.untyped_storage()._cdata
    del request.session.kept


def test_a_search_in_this_process_is_not_led_to_all_tests(kept_by_the_session):
    """A recording of a test meets few objects of pytest: all of them would cost it 0.5 s of CPU more."""
    ways = {way.storage._cdata: way.words for way in search(10.0, sys._getframe()).ways}

    assert ways
    assert ways.get(kept_by_the_session, [("nothing",)])[0][0] != "global"
