"""For all tests: no deadline on a busy machine, and servers that surely end."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from threading import Timer
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from hypothesis import HealthCheck, settings

# Where the module standin lies, for us as for the scripts inside.
sys.path.append(str(Path(__file__).parent / "standin" / "python"))

from standin_fixtures import board, forks, run_standin, standin  # noqa: F401

# How long an example takes says something about the machine only; and a failure must come again.
settings.register_profile(
    "vramscope", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("vramscope")

_LONGEST_S = 120


@contextmanager
def _serving(command: Sequence[object], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """The running *command*, when its page has answered; asked to end with Ctrl-C, killed if it hangs."""
    # A parent without a terminal may have SIGINT ignored, and a child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, cwd=cwd)
    signal.signal(signal.SIGINT, before)
    watchdog = Timer(_LONGEST_S, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        address = next(
            (found[0] for line in server.stdout if (found := re.search(r"http://\S+", line))), None
        )
        assert address is not None, "the server ended before it said where it is"
        # The token in the address becomes a cookie.
        with build_opener(HTTPCookieProcessor(CookieJar())).open(address, timeout=60) as answer:
            assert answer.status == 200
            assert "<title>" in answer.read().decode()
        yield server
        server.send_signal(signal.SIGINT)
        server.stdout.read()
        assert server.wait() == 0
    finally:
        watchdog.cancel()
        server.kill()
        server.communicate()


@pytest.fixture
def serving() -> Callable[[Sequence[object], Path], AbstractContextManager[subprocess.Popen[str]]]:
    """``with serving(command, directory) as process:`` a server whose page was fetched."""
    return _serving
