"""Each pixel of the allocations' timeline is the allocation that a count of all live ones says."""

import gzip
import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.figures.bands import (
    EMPTY,
    SMALLER,
    Box,
    Detail,
    Raster,
    bands,
    fullest,
    raster,
)
from vramscope.dashboard.figures.drawing.series import Curve, Flags, Series, Spans

from vramscope.analysis.lifetimes import ALIVE, BEFORE, Allocations

N_EVENTS = 400


def pixels_of(picture: Raster, height: int) -> Any:
    """What is drawn at each pixel, shape (columns, height)."""
    return np.repeat(picture.rows, picture.n_pixels).reshape(-1, height)[picture.column]


def lives(seed: int, n: int = 150, sizes: tuple[int, int] = (1, 1000)) -> Allocations:
    """Random lives; the first ten pre-date the trace, one of these was freed before it."""
    rng = np.random.default_rng(seed)
    born = np.concatenate([np.full(10, -1), np.sort(rng.choice(N_EVENTS, n - 10, replace=False))])
    freed = np.minimum(np.maximum(born, 0) + 1 + rng.integers(0, 90, n), N_EVENTS)
    freed = np.where((rng.random(n) < 0.2) | (freed >= N_EVENTS), ALIVE, freed)
    freed[3] = BEFORE
    return Allocations.of(alloc_event=born, free_event=freed, block_size=rng.integers(*sizes, n))


def outline(found: Allocations) -> Any:
    return np.array([found.block_size[found.allocated_at(k)].sum() for k in range(N_EVENTS + 1)])


def owner(found: Allocations, instant: Any, byte: float) -> int:
    """The owner, found by adding what is live in order of birth."""
    level = 0
    for row in np.flatnonzero(found.allocated_at(instant)):
        level += int(found.block_size[row])
        if byte < level:
            return int(row)
    return EMPTY


@pytest.mark.parametrize("seed", range(4))
def test_every_pixel_is_what_is_live_there(seed: int) -> None:
    found = lives(seed)
    total = outline(found)
    instants = np.arange(N_EVENTS + 1)
    index = bands(found, total, Detail(least_distance=16))
    pixels = pixels_of(raster(index, Box(instants, 0, float(total.max()) * 1.1, 37)), 37)

    centers = (np.arange(37) + 0.5) * total.max() * 1.1 / 37
    expected = [[owner(found, k, byte) for byte in centers] for k in instants]
    assert pixels.tolist() == expected


def test_a_zoom_in_bytes_shows_the_same_owners() -> None:
    found = lives(9)
    total = outline(found)
    low, high = total.max() * 0.4, total.max() * 0.45
    picture = raster(bands(found, total), Box(np.array([200, 200, 7]), low, high, 20))
    pixels = pixels_of(picture, 20)

    centers = low + (np.arange(20) + 0.5) * (high - low) / 20
    assert pixels[0].tolist() == pixels[1].tolist() == [owner(found, 200, byte) for byte in centers]
    assert pixels[2].tolist() == [owner(found, 7, byte) for byte in centers]
    assert picture.n_pixels.sum() == 2 * 20


def test_below_all_memory_and_above_it_is_nothing() -> None:
    found = lives(1)
    total = outline(found)
    pixels = pixels_of(raster(bands(found, total), Box(np.array([100]), -1000.0, total.max() * 3.0, 64)), 64)

    assert pixels[0][0] == EMPTY
    assert pixels[0][-1] == EMPTY


def test_blocks_too_small_to_see_are_one_band_of_their_exact_bytes() -> None:
    found = lives(2)
    total = outline(found)
    index = bands(found, total, Detail(cuts=(500, 0), most_bands=5))
    coarse = raster(index, Box(np.array([250]), 0, float(total[250]), 4))
    fine = raster(index, Box(np.array([250]), 0, float(total[250]), int(total[250])))

    large = found.block_size[found.allocated_at(250) & (found.block_size >= 500)].sum()
    centers = (np.arange(4) + 0.5) * total[250] / 4
    assert coarse.cut == 500
    assert (pixels_of(coarse, 4)[0] == SMALLER).tolist() == (centers >= large).tolist()
    assert fine.cut == 0
    assert SMALLER not in fine.rows


def series_of(position: Any, level: Any, steps: Spans | None = None) -> Series:
    """Return a series of one curve."""
    curve = Curve(np.zeros(0), np.zeros(0))
    none = Spans(*(np.zeros(0) for _ in range(4)))
    flags = Flags(np.zeros(0), np.zeros(0, "i8"), ())
    return Series("events", position, level, level, level, curve, 0, none, steps or none, flags)


@pytest.mark.parametrize("n", [500, 30_000])
def test_each_column_shows_its_fullest_instant(n: int) -> None:
    rng = np.random.default_rng(3)
    position = np.cumsum(rng.random(n))
    level = rng.integers(0, 1000, n)
    borders = np.linspace(position[0], position[-1], 41)
    chosen = fullest(series_of(position, level), borders)

    for left, right, at in zip(borders[:-1], borders[1:], chosen, strict=True):
        inside = np.flatnonzero((position >= left) & (position < right))
        entering = np.flatnonzero(position < left)[-1:]
        assert level[at] == level[np.concatenate([entering, inside])].max()


def test_columns_narrower_than_a_step_show_the_peak_of_their_step() -> None:
    """200 steps of 5 instants, each with its peak at its second; 400 columns of 2.5."""
    level = np.where(np.arange(1000) % 5 == 1, 100 + np.arange(1000), 7)
    begins = np.arange(0.0, 1000, 5)
    spans = Spans(begins, begins + 5, np.arange(200), np.zeros(200, "i8"))
    series = series_of(np.arange(1000.0), level, spans)
    narrow = level[fullest(series, np.linspace(0, 1000, 401))]
    wide = np.linspace(0, 20, 401)

    assert narrow.tolist() == [100 + 5 * (column // 2) + 1 for column in range(400)]
    assert np.array_equal(fullest(series, wide), fullest(replace(series, steps=series.phases), wide))


def unpacked(body: bytes) -> dict[str, Any]:
    """What the script of the page makes of an answer."""
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    at = 4 + length
    for name, n, kind, unit, divisor, sums in header["columns"]:
        numbers = np.frombuffer(body, f"<{kind}", n, at)
        multiples = numbers if kind == "f8" else numbers.astype("i8") * unit
        multiples = np.cumsum(multiples) if sums else multiples
        header[name] = multiples / divisor if divisor > 1 else multiples
        at += numbers.nbytes
    return dict(header)


def ask(app: Any, path: str, **args: Any) -> Any:
    client = app.server.test_client()
    client.get("/?token=secret-token", base_url="http://127.0.0.1")
    return client.get(path, query_string=args, base_url="http://127.0.0.1")


VIEW = {"axis": "events", "a": 0, "b": 60, "lo": 0, "hi": 100 << 20, "w": 30, "h": 50}


def test_the_answer_of_the_server_is_the_raster(app: Any, view: Any) -> None:
    answer = ask(app, "/api/active", run=view.run_id, by="line", **VIEW)
    said = unpacked(gzip.decompress(answer.data))
    pixels = np.repeat(said["ids"][said["local"]], said["length"]).reshape(-1, said["h"])[said["column"]]

    found = view.recording.lifetimes()
    centers = (np.arange(50) + 0.5) * (100 << 20) / 50
    for column, instant in enumerate(said["instants"].tolist()):
        assert pixels[column].tolist() == [owner(found, instant, byte) for byte in centers]
    assert said["colors"]
    assert answer.headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    "bad", [{"a": "nan"}, {"b": "1e400"}, {"w": "x"}, {"a": 5, "b": 5}, {"lo": 3, "hi": 2}, {"h": ""}]
)
def test_what_is_no_view_is_refused(app: Any, view: Any, bad: dict[str, Any]) -> None:
    assert ask(app, "/api/active", run=view.run_id, **{**VIEW, **bad}).status_code == 400


def test_a_run_that_is_not_there_is_not_found(app: Any) -> None:
    assert ask(app, "/api/active", run="../../etc/passwd", **VIEW).status_code == 404
    assert ask(app, "/api/alloc", run="nobody", id=1).status_code == 404


def test_a_huge_picture_is_cut_to_size(app: Any, view: Any) -> None:
    said = unpacked(
        gzip.decompress(ask(app, "/api/active", run=view.run_id, **VIEW | {"w": 10**9, "h": 10**9}).data)
    )

    assert said["w"] <= 2000
    assert said["h"] <= 1600


def test_the_pointer_gets_what_it_points_at(app: Any, view: Any) -> None:
    said = ask(app, "/api/alloc", run=view.run_id, id=1).get_json()

    assert said["where"] == "Attention.forward"
    assert said["bytes"] == 8 << 20
    assert ask(app, "/api/alloc", run=view.run_id, id=10**9).status_code == 404
