"""How far a file is read comes from the system, and is shown as bytes of bytes."""

import re
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.components import states
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.read_progress import (
    ReadProgress,
    progress,
)

from vramscope.model.partial_curve import PartialCurve, Watch

CURVE = PartialCurve(3000, np.array([0, -(1 << 30)]), np.array([1 << 30, 3 << 30]))
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
                watch(CURVE)
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

    assert (found, after) == (ReadProgress(1000, 4000, CURVE), ReadProgress(4000, 4000, CURVE))
    assert data.reading(name) is None


def test_progress_is_put_in_words_and_drawn() -> None:
    said, bar = states.how_far(True, ReadProgress(300 << 20, 900 << 20))

    assert said.children == "Reading the file: 300 MiB of 900 MiB."
    assert (bar.value, bar.max) == (str(300 << 20), str(900 << 20))


def test_the_curve_of_the_part_that_is_read_takes_its_part_of_the_width() -> None:
    *_, figure = states.how_far(True, ReadProgress(300, 900, CURVE))
    drawn, caption = figure.children
    picture = ET.fromstring(
        unquote(re.fullmatch(r'url\("data:image/svg\+xml,(.*)"\)', drawn.style["maskImage"])[1])
    )
    area, line = ([float(n) for n in re.findall(r"[\d.]+", path.get("d"))] for path in picture)

    assert caption.children == (
        "Allocated memory over the first 3,000 events, a rough first look: from -1.00 GiB to 3.00 GiB "
        "relative to the level before them, which is known at the end."
    )
    assert max(line[::2]) == pytest.approx(1000 / 3, abs=0.1)
    # The greatest level is at the top, the least one at the bottom.
    assert (min(line[1::2]), max(line[1::2])) == (1.5, 198.5)
    assert max(area[1::2]) == 200
