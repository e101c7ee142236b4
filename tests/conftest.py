"""For all tests: no deadline on a busy machine, and no program that outlives its test."""

import gc
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from http.cookiejar import CookieJar
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener
from weakref import proxy, ref

import pytest
from _pytest.assertion import util
from hypothesis import HealthCheck, settings
from hypothesis.internal.constants_ast import constants_from_module

# Where the module standin lies, for us as for the scripts inside.
sys.path.append(str(Path(__file__).parent / "standin" / "python"))
# And the module captures.
sys.path.append(str(Path(__file__).parent / "captures"))

from standin_fixtures import board, forks, plain_forks, run_standin, standin  # noqa: F401

# How long an example takes says something about the machine only; and a failure must come again.
settings.register_profile(
    "vramscope", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("vramscope")

# Each worker of the tests has one core. Threads of torch's operators that share it wait for one another by
# spinning: twice the CPU time, and up to nine times for a small recurrent model. Inherited by every script.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hundreds of scripts import vramscope: without its compiled files each compiles it again, 0.2 s and more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_LONGEST_S = 300
_TESTS = Path(__file__).parent


def pytest_configure() -> None:
    """Ctrl-C works in every program that a test starts.

    nohup and many CI runners start this process with SIGINT ignored, which each child inherits: a server
    that is asked to end with Ctrl-C would go on for ever.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: a quarter of its time a worker waits, for a disk or a browser."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one worker, where it is made once.

    Otherwise each worker takes some of them, and makes the recordings of the module again. Tests that are
    marked exhaustive are left out, unless ``VRAMSCOPE_TESTS=all`` asks for them.
    """
    if os.environ.get("VRAMSCOPE_TESTS") != "all":
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("exhaustive")])
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _has_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _has_module_fixture(item: pytest.Item) -> bool:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 nobody else tells
    return any(found.scope == "module" for each in definitions for found in each)


_n_frozen, _freeze_objects, _unfreeze_objects = gc.get_freeze_count, gc.freeze, gc.unfreeze
_MANY_MODULES = 50
_frozen: dict[str, Any] = {"file": None, "n_modules": 0}
"""The file of the last test, and how many modules were loaded when objects were frozen last."""


def pytest_collection_finish() -> None:
    """What the modules of tests, torch and pytest itself have made is no garbage of a test.

    Each of several hundred tests collects garbage, or looks through all objects, before it counts memory:
    0.3 s of CPU with these 530,000 objects, and next to nothing without. The simulated device would search
    them at every start for tensors of a program that froze them, 0.9 s: it finds nothing frozen. Nor does
    a dry run in this process, or a dashboard, take them back: 1 s with every collection of all tests after.

    Nor are they part of a program that a test records here: the search for what holds its tensors begins with
    the globals of all modules, and few lead to every test: 0.5 s of CPU with each recording. ``pytest.mark``
    needs the configuration to check the names of marks, which is done; hypothesis looks at no module twice.
    """
    vars(pytest.mark)["_config"] = None
    constants_from_module.cache_clear()
    _freeze()
    gc.get_freeze_count = lambda: 0
    gc.freeze = gc.unfreeze = lambda: None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Nor is what earlier tests have imported: transformers, lightning and Jupyter add 2 s to every start.

    Only between the files of tests, as what lives in a fixture of a file must be found in it.
    """
    _refer_weakly(item.config)
    if item.path != _frozen["file"]:
        _show_only(item.path)
    if item.path != _frozen["file"] and len(sys.modules) > _frozen["n_modules"] + _MANY_MODULES:
        _freeze()
    _frozen["file"] = item.path


_hidden: dict[str, ModuleType] = {}
"""The modules of the other files of tests, by their names."""


def _show_only(file: Path) -> None:
    """The globals of other files of tests are no part of the program either."""
    sys.modules.update(_hidden)
    _hidden.clear()
    for name, module in list(sys.modules.items()):
        place = Path(getattr(module, "__file__", None) or "")
        if place.name.startswith("test_") and place != file and _TESTS in place.parents:
            _hidden[name] = sys.modules.pop(name)


def _refer_weakly(config: pytest.Config) -> None:
    """What pytest's globals hold to explain a failed assertion leads to all tests no more."""
    if util._reprcompare is None:
        return
    own = ref(util._reprcompare)  # its caller holds it until the test is over

    def explain(operator: str, left: object, right: object) -> str | None:
        compare = own()
        return compare and compare(operator, left, right)

    util._reprcompare, util._config = explain, proxy(config)


def _freeze() -> None:
    gc.collect()
    _freeze_objects()
    _frozen["n_modules"] = len(sys.modules)


@pytest.fixture
def freezing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """``freezing()`` is ``gc.freeze()``, and the frozen objects can be seen; undone after the test."""
    monkeypatch.setattr(gc, "get_freeze_count", _n_frozen)
    yield _freeze_objects
    _unfreeze_objects()
    gc.collect()
    _freeze_objects()


@contextmanager
def _started(
    command: Sequence[object], longest_s: float = _LONGEST_S, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """The running *command*, whose output is text; it and all that it started are killed after the block.

    Whoever waits for it inside of the block waits for *longest_s* at most: then it is killed, and every
    read from it ends.
    """
    options = {"stdout": subprocess.PIPE, "text": True} | options
    process = subprocess.Popen(list(map(str, command)), start_new_session=True, **options)

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    watchdog = Timer(longest_s, kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        kill()
        process.communicate()


@pytest.fixture(scope="session")
def started() -> Callable[..., AbstractContextManager[subprocess.Popen[str]]]:
    """``with started(command) as process:`` a program that surely ends."""
    return _started


@pytest.fixture(scope="session")
def module_at() -> Callable[[Path], ModuleType]:
    """``module_at(path)``: the module in a file of a folder that is no package, loaded once."""

    @cache
    def load(path: Path) -> ModuleType:
        name = f"{path.parent.name}_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        assert spec.loader
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@contextmanager
def _serving(command: Sequence[object], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """The running *command*, when its page has answered; asked to end with Ctrl-C, killed if it hangs."""
    with _started(command, cwd=cwd) as server:
        assert server.stdout is not None
        address = next(
            (found[0] for line in server.stdout if (found := re.search(r"http://\S+", line))), None
        )
        assert address is not None, "the server ended before it said where it is"
        # The token in the address becomes a cookie.
        with build_opener(HTTPCookieProcessor(CookieJar())).open(address, timeout=120) as answer:
            assert answer.status == 200
            assert "<title>" in answer.read().decode()
        yield server
        server.send_signal(signal.SIGINT)
        server.stdout.read()
        assert server.wait() == 0


@pytest.fixture
def serving() -> Callable[[Sequence[object], Path], AbstractContextManager[subprocess.Popen[str]]]:
    """``with serving(command, directory) as process:`` a server whose page was fetched."""
    return _serving


@pytest.fixture
def own_tensors_only(monkeypatch):
    """Tensors that other tests of this process left alive are no part of what the simulated device records.

    It counts every living tensor of the process, as it should. A few MiB of another test, kept by a fixture
    or a failure's traceback, change the shares of a small program's peak, and with them the findings.
    """
    torch = pytest.importorskip("torch")
    from vramscope.capture.hooks.gradients import gradients_of
    from vramscope.capture.simulated.storages import Storages
    from vramscope.capture.storages import is_wrapper, storages_of

    gc.collect()
    tensors = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.Tensor) and not is_wrapper(type(thing))
    ]
    tensors += [gradient for gradient in gradients_of(tensors) if gradient is not None]
    # These references stay until the test ends, so that no address is used again.
    left = [storage for tensor in tensors for storage in storages_of(tensor)]
    others = {storage._cdata for storage in left}
    take_in = Storages.take_in

    def take_in_own(storages, storage, frame):
        return storage._cdata not in others and take_in(storages, storage, frame)

    monkeypatch.setattr(Storages, "take_in", take_in_own)
    del tensors
    yield
    left.clear()
