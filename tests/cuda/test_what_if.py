"""What a replay foresees under other settings is what the genuine allocator does under them."""

import json

import pytest

from vramscope.load import load

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-fit")]

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "roundup": "roundup_power2_divisions:4",
    "split": "max_split_size_mb:64",
    "large": "large_segment_size_mb:64",
}
NAMES = ("fixed", "lengths", "deep", "accumulated", "kept", "sizes")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_a_replay_comes_to_what_a_genuine_run_reserves(fit_runs, name, setting):
    said = told(fit_runs, name, setting)
    (recording,) = load(fit_runs / f"{name}-default").recordings

    outcome = recording.what_if(conf=SETTINGS[setting])

    assert outcome.peak_reserved == pytest.approx(said["reserved"], rel=0.02)
    assert (outcome.n_retries, outcome.fits) == (said["retries"], said["ooms"] == 0)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_advised_is_never_worse_than_nothing(fit_runs, name):
    (recording,) = load(fit_runs / f"{name}-default").recordings

    advice = recording.settings_advice()

    assert advice.is_reproduced
    if advice.advised is not None:
        conf = advice.advised.candidate.conf
        setting = next((each for each, known in SETTINGS.items() if known == conf), None)
        if setting is not None:
            assert told(fit_runs, name, setting)["reserved"] < told(fit_runs, name, "default")["reserved"]


def told(fit_runs, name, setting):
    """torch's own counters at the end of that run."""
    answer = fit_runs / f"{name}-{setting}.json"
    assert answer.exists(), (fit_runs / f"{name}-{setting}.stderr").read_text()
    return json.loads(answer.read_text())
