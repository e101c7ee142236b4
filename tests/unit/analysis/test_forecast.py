"""When a run fills its device, checked against series that are followed to their end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vramscope.analysis.forecast import (
    Outlook,
    Peaks,
    Reservable,
    forecast,
    forecast_of_summary,
    outlook_of,
)
from vramscope.analysis.pace import StepPace
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note
from vramscope.model.rank_summary import DeviceSummary, PeakPlace, StepRows
from vramscope.model.recording import Outcome, Recording

MIB = 1 << 20
BASE = 500 * MIB
Series = Callable[[NDArray[Any], Any, float], NDArray[Any]]

GROWING: dict[str, Series] = {
    "linear": lambda t, _, rate: rate * t,
    "noisy": lambda t, draw, rate: rate * t + draw.normal(0, 5 * rate, len(t)),
    "every ten steps": lambda t, _, rate: rate * 10 * (t // 10),
    "ever faster": lambda t, _, rate: rate * t * (1 + t / 800),
    "ever slower": lambda t, _, rate: rate * 900 * (1 - np.exp(-t / 900)),
    "evaluates": lambda t, _, rate: rate * t + (t % 50 == 45) * 60 * rate,
    "warms up": lambda t, _, rate: rate * t + 300 * rate * (np.minimum(t, 5) - 5),
}
STEADY: dict[str, Series] = {
    "flat": lambda t, _, rate: 0 * rate * t,
    "lengths vary": lambda t, draw, rate: draw.uniform(0, 200 * rate, len(t)),
    "longest so far": lambda t, draw, rate: np.maximum.accumulate(draw.uniform(0, 200 * rate, len(t))),
    "saturates": lambda t, _, rate: 400 * rate * (1 - np.exp(-t / 60)),
    "full buffer": lambda t, _, rate: rate * np.minimum(t, 50),
    "cleared": lambda t, _, rate: rate * (t % 37),
    "evaluates": lambda t, _, rate: (t % 50 == 45) * 200 * rate,
    "waves": lambda t, _, rate: 40 * rate * np.sin(t / 40),
}


def rows(peak_bytes: Any) -> StepRows:
    peak, n = np.asarray(peak_bytes).astype("i8"), len(peak_bytes)
    reserved = np.maximum.accumulate(-(-(peak + 20 * MIB) // (2 * MIB)) * 2 * MIB)
    at = np.arange(n)
    return StepRows.of(
        step=at, n_steps=np.ones(n), start_ns=at * 10**9 + 1, end_ns=at, allocated=peak, reserved=reserved
    )


def in_sight(outlook: Outlook) -> tuple[int, int] | None:
    return outlook.forecast and outlook.forecast.step_range


@pytest.mark.parametrize("per_step", [1.1, 1.7, 3.1, 4.3, 6.1])
def test_blocks_that_do_not_fill_their_segments_bring_the_limit_nearer(per_step: float) -> None:
    """Kept blocks lie in segments of 20 MiB, as torch's large blocks do: the rest of each is unused."""
    at, in_segment = np.arange(600), int(20 // per_step)
    allocated = BASE + int(per_step * MIB) * (at + 1)
    reserved = BASE + 20 * MIB * -(-(at + 1) // in_segment)
    limit = int(reserved[-1])
    fails = int(in_segment * ((limit - BASE) // (20 * MIB)))

    for n in (100, 200, 300, 450, 550):
        known = replace(rows(allocated[:n]), reserved=reserved[:n])
        sight = in_sight(outlook_of(Peaks(known), Reservable(limit)))
        assert sight is not None
        assert sight[0] <= fails <= sight[1]


@pytest.mark.parametrize("kind", GROWING)
def test_the_limit_lies_in_the_stated_range(kind: str) -> None:
    draw, n_given, n_held = np.random.default_rng(7), 0, 0
    for _ in range(20):
        rate = draw.uniform(0.2, 2) * MIB
        peak = BASE + GROWING[kind](np.arange(1500), draw, rate)
        limit = int(BASE + rate * draw.uniform(250, 600))
        first = int(np.flatnonzero(peak > limit)[0])
        for share in (0.3, 0.5, 0.7, 0.9):
            found = in_sight(outlook_of(Peaks(rows(peak[: int(first * share)])), Reservable(limit)))
            n_given += found is not None
            n_held += found is not None and found[0] <= first <= found[1]

    assert n_given >= 20
    assert n_held >= 0.95 * n_given


@pytest.mark.parametrize("kind", STEADY)
@pytest.mark.parametrize("n_steps", [15, 30, 100, 150, 300, 800])
def test_no_limit_is_in_sight_of_what_is_steady(kind: str, n_steps: int) -> None:
    draw = np.random.default_rng(3)
    for _ in range(5):
        rate = draw.uniform(0.2, 2) * MIB
        peak = BASE + STEADY[kind](np.arange(n_steps), draw, rate)

        assert in_sight(outlook_of(Peaks(rows(peak)), Reservable(int(BASE + 500 * rate)))) is None


def test_a_batch_that_varies_hides_no_growth_of_what_the_steps_leave() -> None:
    t, draw = np.arange(1000), np.random.default_rng(5)
    rests = BASE + MIB * t
    peak = rests + draw.uniform(0, 80, len(t)) * MIB
    limit = BASE + 600 * MIB
    first = int(np.flatnonzero(peak > limit)[0])

    known = outlook_of(Peaks(rows(peak[:300]), rests[:300]), Reservable(limit))

    low, high = in_sight(known) or (0, 0)
    assert low <= first <= high
    # The peaks vary by 80 steps' growth, and the allocator keeps 20 free.
    assert high - low < 140


def test_the_sentence_has_step_range_and_time() -> None:
    found = outlook_of(Peaks(rows(BASE + MIB * np.arange(100))), Reservable(800 * MIB), far=StepPace(99, 0.5))

    assert found.forecast is not None
    assert found.forecast.bytes_per_step == MIB
    low, high = found.forecast.step_range
    # Step 300 is the last that needs no more than 800 MiB; 20 MiB are kept free, and rounding.
    assert low <= 301 <= high
    step, minutes = found.forecast.step, round((found.forecast.step - 99) * 2 / 60)
    assert found.text == (
        f"at this rate the limit of 800 MiB is reached near step {step} ({low} to {high}), "
        f"in about {minutes} min"
    )
    assert found.short == f"limit near step {step} ({low} to {high}), in about {minutes} min"


def test_a_steady_run_is_called_so_over_the_steps_that_it_plans() -> None:
    flat = Peaks(rows(np.full(50, BASE)))

    assert outlook_of(flat, Reservable(800 * MIB), total_steps=1050).text == (
        "no limit in sight over the 1,000 steps left"
    )
    assert outlook_of(flat, Reservable(800 * MIB)).text == ""
    # What grows may end before the limit, and is not called steady.
    grows = Peaks(rows(BASE + MIB * np.arange(100)))
    ends = outlook_of(grows, Reservable(2000 * MIB), total_steps=200)
    assert (ends.steady_steps, ends.text) == (100, "no limit in sight over the 100 steps left")
    assert outlook_of(grows, Reservable(800 * MIB), total_steps=1000).forecast is not None


@pytest.mark.parametrize("code", [NoteCode.GAP, NoteCode.DIED, NoteCode.STOPPED, NoteCode.PREDICTION])
def test_what_lacks_a_part_has_no_forecast(code: NoteCode) -> None:
    device = Device(kind="simulated", total_bytes=800 * MIB)
    grows = DeviceSummary(device=device, steps=rows(BASE + MIB * np.arange(100)))

    assert forecast_of_summary(grows, Process()).forecast is not None
    assert forecast_of_summary(replace(grows, notes=(Note(code, "", 1),)), Process()) == Outlook()
    assert forecast_of_summary(replace(grows, n_failed=1), Process()) == Outlook()


def test_the_limit_is_that_of_the_process_or_the_device_without_what_others_use() -> None:
    grows = DeviceSummary(
        device=Device(kind="cuda", total_bytes=1000 * MIB), steps=rows(BASE + MIB * np.arange(100))
    )
    limited = replace(grows, notes=(Note(NoteCode.LIMIT, "", 700 * MIB),))
    # 620 MiB are reserved, so others and the context have 130.
    shared = replace(
        grows,
        samples={"device_used_bytes": 750 * MIB},
        peak={"reserved": PeakPlace(620 * MIB, 99, 0)},
    )

    def limit(summary: DeviceSummary) -> int | None:
        return forecast_of_summary(summary, Process()).limit_bytes

    assert limit(limited) == 700 * MIB
    assert limit(shared) == 870 * MIB


def test_a_recording_without_a_limit_or_that_failed_has_no_outlook() -> None:
    assert forecast(Recording()) == Outlook()
    failed = Recording(device=Device(total_bytes=MIB), outcome=Outcome.FAILED)
    assert forecast(failed) == Outlook()
