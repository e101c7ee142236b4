"""How far a file is read comes from the system, and is shown as bytes of bytes."""

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.components import states
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.read_progress import (
    ReadProgress,
    progress,
)

from vramscope.formats import Watch

needs_proc = pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="the system does not tell")


@needs_proc
def test_the_place_in_an_open_file_is_given(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(5000))
    assert progress(path) is None
    with path.open("rb", buffering=0) as file:
        file.read(1234)
        assert progress(path) == ReadProgress(1234, 5000)

    assert progress(path) is None
    assert progress(tmp_path / "absent") is None


@needs_proc
def test_who_waits_for_a_file_learns_how_far_it_is(tmp_path: Path) -> None:
    path, (half, go_on, read, end) = tmp_path / "large.pickle", (Event() for _ in range(4))
    path.write_bytes(bytes(4000))

    class Slow:
        def discover(self, _: Path) -> list[Path]:
            return [path]

        def follow(self, _: Path, watch: Watch, *_more: Any, **_options: Any) -> Any:
            with path.open("rb", buffering=0) as file:
                file.read(1000)
                watch()
                half.set()
                assert go_on.wait(10)
            read.set()
            assert end.wait(10)
            raise OSError("no matter what comes")

    data = Data(path, Slow())
    (name,) = data.runs.paths()
    assert data.reading(name) is None

    def open_it() -> None:
        with pytest.raises(OSError, match="no matter"):
            data.view(Address(run=name))

    thread = Thread(target=open_it, daemon=True)
    thread.start()
    assert half.wait(10)
    found = data.reading(name)
    go_on.set()
    assert read.wait(10)
    after = data.reading(name)
    end.set()
    thread.join()

    assert (found, after) == (ReadProgress(1000, 4000), ReadProgress(4000, 4000))
    assert data.reading(name) is None


def test_progress_is_put_in_words() -> None:
    said, bar = states.how_far(True, ReadProgress(300 << 20, 900 << 20))

    assert said.children == "Reading the file: 300 MiB of 900 MiB."
    assert (bar.value, bar.max) == (str(300 << 20), str(900 << 20))
