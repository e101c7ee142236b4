"""The header of a live page says in few words when the limit is reached; the whole sentence is its title."""

from dataclasses import replace

from vramscope.dashboard.address import Address
from vramscope.dashboard.answers.live import LiveAnswers
from vramscope.dashboard.components.header import standing
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.headline import ahead, forecast_words

from vramscope.analysis.forecast import NOTHING_KNOWN, Forecast, Outlook
from vramscope.analysis.pace import StepPace
from vramscope.model.recording import Outcome

FULL_SOON = Outlook(Forecast(598, (557, 639), 1 << 27, 1 << 18, 160 << 20, 240.0))


def shown(outlook, stalled_s=0):
    parts = standing(Outcome.RUNNING, StepPace(84, 2.0), stalled_s, 0, forecast_words(outlook))
    return [part for part in parts if "ahead" in getattr(part, "className", "")]


def test_a_limit_in_sight_stands_out_and_has_the_whole_sentence_as_its_title():
    (part,) = shown(FULL_SOON)

    assert part.children == "· limit near step 598 (557 to 639), in about 4 min"
    assert part.className == "outcome ahead near"
    assert part.title == FULL_SOON.text


def test_a_steady_run_does_not_stand_out_and_a_stalled_or_unknown_one_says_nothing():
    (part,) = shown(Outlook(steady_steps=1000))

    assert (part.children, part.className) == ("· no limit in sight", "outcome ahead ")
    assert shown(NOTHING_KNOWN) == []
    assert shown(FULL_SOON, stalled_s=9) == []


def test_all_parts_of_one_version_have_the_first_forecast_that_it_has(open_program, tmp_path, monkeypatch):
    """The header asks with the version, the findings when drawn: each time a newer one is at hand."""
    program = open_program(tmp_path / "live")
    program.begin()
    program.step()
    data = Data(tmp_path)
    view = data.view(Address(run=next(iter(data.runs.paths()))))
    later = [Outlook(replace(FULL_SOON.forecast, step=step)) for step in (600, 602, 604)]
    at_hand = iter([NOTHING_KNOWN, *later])
    monkeypatch.setattr(LiveAnswers, "lagging", lambda *_: next(at_hand))

    assert [ahead(data, view) for _ in range(3)] == [NOTHING_KNOWN, later[0], later[0]]
    assert ahead(data, replace(view, version=view.version + 1)) == later[2]
