"""Columns are sent in few bytes, and the browser gets the values that were sent."""

import gzip
import json

import numpy as np
import pytest
from flask import Flask
from vramscope.dashboard.server.api import columns

RNG = np.random.default_rng(7)
SORTED = np.sort(RNG.integers(0, 1 << 40, 1000))
COLUMNS = {
    "bytes": RNG.integers(0, 1 << 34, 500) * 512,
    "odd bytes": RNG.integers(0, 1 << 40, 500) * 2 + 1,
    "instants": np.sort(RNG.integers(0, 5_000_000, 4000)),
    "ascending beyond 32 bits": SORTED,
    "negative": RNG.integers(-(1 << 20), 1 << 20, 300),
    "small": RNG.integers(0, 2, 300).astype("u1"),
    "seconds": np.sort(RNG.integers(0, 10**10, 1000)) / 1e9,
    "seconds with pauses": SORTED / 1e9,
    "years of nanoseconds": SORTED / 1e9 + 1.7e9,
    "fractions": RNG.random(100) * 1e-3,
    "without a value": np.array([0.5, np.nan, 2.0]),
    "endless": np.array([0.5, np.inf]),
    "none": np.zeros(0, "i8"),
    "no seconds": np.zeros(0),
    "one": np.array([3]),
}


def received(body: bytes) -> tuple[np.ndarray, int]:
    """The column "x" as the script of the page reads it, and the bytes that it takes."""
    size = int.from_bytes(body[:4], "little")
    ((name, n, kind, unit, divisor, sums),) = json.loads(body[4 : 4 + size])["columns"]
    assert name == "x"
    numbers = np.frombuffer(body, f"<{kind}", n, 4 + size).astype("f8")
    if sums:
        numbers = np.cumsum(numbers).astype(f"<{sums}").astype("f8")
    return numbers * unit / divisor, len(body) - 4 - size


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_a_column_comes_as_it_was_sent(name: str) -> None:
    with Flask(__name__).test_request_context():
        body = gzip.decompress(columns({}, x=COLUMNS[name]).data)
    values, n_bytes = received(body)

    assert np.array_equal(values, COLUMNS[name].astype("f8"), equal_nan=True)
    assert n_bytes <= COLUMNS[name].nbytes


def test_what_ascends_and_whole_nanoseconds_take_two_thirds() -> None:
    for name in ("instants", "seconds"):
        with Flask(__name__).test_request_context():
            answer = columns({}, x=COLUMNS[name])

        assert len(answer.data) < COLUMNS[name].nbytes * 2 // 3, name
