"""The exception that ends a program or a cell is passed on once, and to the program's own hook as before."""

import sys
from types import SimpleNamespace

import pytest

from vramscope.integrations._trainer import UncaughtErrors


@pytest.fixture
def hooked(monkeypatch):
    """What the program's own hook is called with."""
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *arguments: seen.append(arguments))
    monkeypatch.setitem(sys.modules, "IPython", None)
    return seen


def test_an_error_of_the_program_reaches_both_hooks_once(hooked):
    own, ended, error = sys.excepthook, [], ValueError("bad")
    errors = UncaughtErrors(ended.append)
    errors.watch()
    errors.watch()
    sys.excepthook(ValueError, error, None)
    sys.excepthook(ValueError, error, None)

    assert ended == [error]
    assert hooked == [(ValueError, error, None)] * 2
    assert sys.excepthook is own


def test_a_hook_that_came_later_stays(hooked):
    ended = []
    errors = UncaughtErrors(ended.append)
    errors.watch()
    ours = sys.excepthook

    def later(*arguments):
        ours(*arguments)

    sys.excepthook = later
    errors.release()
    sys.excepthook(ValueError, ValueError("bad"), None)

    assert sys.excepthook is later
    assert ended == []
    assert len(hooked) == 1

    errors.watch()
    sys.excepthook(ValueError, ValueError("worse"), None)

    assert [str(error) for error in ended] == ["worse"]
    assert len(hooked) == 2


def test_an_error_of_a_cell_is_passed_on(hooked, monkeypatch):
    calls = {"post_run_cell": []}
    shell = SimpleNamespace(
        events=SimpleNamespace(
            register=lambda name, call: calls[name].append(call),
            unregister=lambda name, call: calls[name].remove(call),
        )
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    ended, error = [], ValueError("bad")
    errors = UncaughtErrors(ended.append)
    errors.watch()
    for result in ((None, None), (None, error)):
        for call in list(calls["post_run_cell"]):
            call(SimpleNamespace(error_before_exec=result[0], error_in_exec=result[1]))

    assert ended == [error]
    assert calls == {"post_run_cell": []}
    assert hooked == []
