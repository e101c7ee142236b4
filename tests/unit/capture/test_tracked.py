"""Objects of the program are selected without harm to what other threads build."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vramscope.capture.undisturbed.tracked import tracked_objects


class Thing:
    """An object that only these tests make."""


class Hostile(type):
    """A class of classes whose questions fail."""

    def __hash__(cls) -> int:
        raise AssertionError("asked for a hash")

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("compared")


def numbers_while_held(select: Callable[[], Any]) -> Iterator[int]:
    """Yield 30 numbers; in the middle, what *select* returns is held until the end."""
    held = None
    for number in range(30):
        if number == 5:
            held = select()
        yield number
    assert held is not None


def everything() -> list[Any]:
    return tracked_objects(lambda _: True)


def test_the_objects_are_those_of_the_wanted_types() -> None:
    things = [Thing() for _ in range(5)]

    found = tracked_objects(lambda kind: kind is Thing)

    assert sorted(map(id, found)) == sorted(map(id, things))


def test_the_objects_are_released_with_the_list_though_iterators_are_wanted() -> None:
    thing = Thing()
    before = sys.getrefcount(thing)
    gc.disable()
    try:
        found = tracked_objects(lambda kind: kind is Thing or "__next__" in vars(kind))
        assert any(each is thing for each in found)
        del found

        assert sys.getrefcount(thing) == before
    finally:
        gc.enable()


def test_only_one_generation_is_searched_where_it_is_named() -> None:
    gc.collect()
    old = Thing()
    gc.collect()
    new = Thing()
    found = tracked_objects(lambda kind: kind is Thing, 0)

    assert any(each is new for each in found)
    assert not any(each is old for each in found)


def test_a_tuple_under_construction_is_not_held() -> None:
    assert tuple(numbers_while_held(everything)) == tuple(range(30))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 fills a list first")
def test_holding_all_objects_breaks_it() -> None:
    with pytest.raises(SystemError, match="bad argument to internal function"):
        tuple(numbers_while_held(gc.get_objects))


def test_no_code_of_a_class_runs() -> None:
    hostile = Hostile("OfTheProgram", (), {})()
    found = tracked_objects(lambda kind: type(kind) is Hostile)

    assert [each is hostile for each in found] == [True]


AUDITED = """
import sys
from vramscope.capture.undisturbed.tracked import tracked_objects
events = []
sys.addaudithook(lambda event, _: events.append(event))
tracked_objects(lambda kind: kind is dict)
print(sorted(set(events[:])))
"""


def test_no_hook_of_audits_runs_while_the_objects_are_held() -> None:
    done = subprocess.run([sys.executable, "-c", AUDITED], capture_output=True, text=True, check=True)

    # Only when all of them are asked for: nothing is held then.
    assert done.stdout.strip() == "['gc.get_objects']"


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_as_it_was(is_on: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if is_on else gc.disable()
        everything()
        assert gc.isenabled() is is_on
        with pytest.raises(ZeroDivisionError):
            tracked_objects(lambda _: 1 // 0 == 1)
        assert gc.isenabled() is is_on
    finally:
        gc.enable() if before else gc.disable()


def test_threads_that_build_tuples_go_on_building_them() -> None:
    ends, errors = threading.Event(), []
    built = [0, 0]

    def build(which: int) -> None:
        try:
            while not ends.is_set():
                tuple(number for number in range(40))
                built[which] += 1
        except SystemError as error:
            errors.append(error)

    before = sys.getswitchinterval()
    threads = [threading.Thread(target=build, args=(which,)) for which in range(2)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for n_calls in range(10_000):
            everything()
            if errors or (n_calls >= 20 and min(built) > 100):
                break
    finally:
        sys.setswitchinterval(before)
        ends.set()
        for thread in threads:
            thread.join()

    assert errors == []
    assert min(built) > 100
