"""Real scripts: every seeded leak is found within 10 steps, and nothing where nothing leaks.

What is right stands in the scripts' own comments. The hold-out was written before the detector was first run,
the trial before it was run again when it was done, the unseen when it had been done for long: of them the
test asks less.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest

import vramscope
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Marks, Phases, Steps
from vramscope.model.trace import Action

corpus = sys.modules["leaks_corpus"]
LEAKING, CLEAN, HOLDOUT, TRIAL, UNSEEN, FIELD = (
    corpus.scripts(folder, "simulated")
    for folder in ("leaking", "clean", "holdout", "trial", "unseen", "field")
)

pytestmark = pytest.mark.xdist_group("leaks")


def recording_of(recorded_corpus, script):
    (recording,) = vramscope.load(recorded_corpus[script.name]).recordings
    return recording


def kind_of(script):
    return "growing_batch" if script.cause == "growing_batch" else "leak"


def without_holders(recording):
    """The script as a recording has it whose capture never looked for holders."""
    return replace(recording, holders=Holders.of())


def test_the_corpus_is_as_large_as_promised():
    causes = {script.cause for script in LEAKING}

    assert len(LEAKING) >= 15
    assert len(CLEAN) >= 10
    assert len(causes) == 13
    assert all(script.lines and script.holder for script in LEAKING)
    assert not any(script.cause for script in CLEAN)


@pytest.mark.parametrize("script", LEAKING, ids=lambda script: script.name)
def test_a_seeded_leak_is_found_in_10_steps_with_cause_line_and_holder(recorded_corpus, script):
    recording = recording_of(recorded_corpus, script)
    result = corpus.judge(script, recording)

    assert len(recording.steps) == 10
    assert [finding.kind for finding in result.findings] == [kind_of(script)]
    assert result.leak.cause == script.cause
    assert result.has_right_line, result.leak
    assert result.has_right_holder, result.leak
    assert result.leak.bytes_per_step >= 64 << 10
    kept = result.leak.evidence["kept_at"]
    assert kept is None or (kept["line"] == script.kept_at and kept["code"])


@pytest.mark.parametrize("script", CLEAN, ids=lambda script: script.name)
def test_a_clean_loop_has_no_finding(recorded_corpus, script):
    recording = recording_of(recorded_corpus, script)
    result = corpus.judge(script, recording)

    assert result.n_iterations >= 29
    assert result.findings == []


@pytest.mark.parametrize("script", [*HOLDOUT, *TRIAL, *UNSEEN], ids=lambda script: script.name)
def test_the_hold_out_is_distinguished_and_never_named_wrongly(recorded_corpus, script):
    result = corpus.judge(script, recording_of(recorded_corpus, script))

    if script.cause:
        assert result.has_right_line
        assert result.leak.cause in (script.cause, "unknown")
        assert result.leak.holder is None or result.has_right_holder
    else:
        assert result.findings == []


@pytest.mark.parametrize("script", FIELD, ids=lambda script: script.name)
def test_a_bug_that_users_made_has_its_cause_line_holder_and_edit(recorded_corpus, script):
    result = corpus.judge(script, recording_of(recorded_corpus, script))

    assert [(finding.kind, finding.cause) for finding in result.findings] == [(kind_of(script), script.cause)]
    assert result.has_right_line, result.leak
    assert result.has_right_holder, result.leak
    assert script.edit in result.leak.advice
    kept = result.leak.evidence["kept_at"]
    assert kept is None or kept["line"] == script.kept_at


@pytest.mark.parametrize("script", LEAKING, ids=lambda script: script.name)
def test_without_holders_the_line_is_found_and_no_wrong_cause(recorded_corpus, script):
    recording = without_holders(recording_of(recorded_corpus, script))
    result = corpus.judge(script, recording)

    assert result.has_right_line, result.leak
    assert result.leak.cause in (script.cause, "unknown")
    assert result.leak.holder is None


# Without phases a batch that grows and a gradient that grows look the same: neither is reported.
ALIKE = ("growing_batch", "gradient_not_cleared")
WITHOUT_PHASES = [script for script in LEAKING if script.cause not in ALIKE]


@pytest.mark.parametrize("script", WITHOUT_PHASES, ids=lambda script: script.name)
def test_a_ring_that_lost_its_beginning_shows_the_same_leak(recorded_corpus, script):
    recording = without_holders(recording_of(recorded_corpus, script))
    whole = recording.leaks()
    # The first two steps are gone: what they left in memory is only known to be there from the start.
    result = recording_from(recording, int(recording.steps.end_event[1])).leaks()

    assert result.leaks[0].lines[0].frame.line in script.lines
    assert result.leaks[0].bytes_per_step == pytest.approx(whole.leaks[0].bytes_per_step, rel=0.1)


@pytest.mark.parametrize("cause", ALIKE)
def test_without_phases_a_batch_that_grows_and_a_gradient_are_not_called_leaks(recorded_corpus, cause):
    (script,) = (script for script in LEAKING if script.cause == cause)
    found = replace(recording_of(recorded_corpus, script), phases=Phases.of()).leaks()

    assert found.leaks == ()
    assert found.batch is None


def recording_from(recording, event):
    """The same, recorded only from *event* on, without a word about what was there."""
    steps = recording.steps.rows(recording.steps.start_event >= event)
    kept = Steps.of(
        index=steps.index,
        start_event=steps.start_event - event,
        end_event=steps.end_event - event,
        start_ns=steps.start_ns,
        end_ns=steps.end_ns,
    )
    trace = recording.trace.rows(slice(event, None))
    return replace(bare(recording), trace=trace, steps=kept)


def bare(recording):
    """The recording as a file of another tool has it: without steps, phases, marks and labels."""
    return replace(recording, steps=Steps.of(), phases=Phases.of(), marks=Marks.of(), labels=Labels.of())


@pytest.mark.parametrize("name", ["leaking/outputs_list", "leaking/metrics_object", "leaking/traceback_kept"])
def test_a_file_without_steps_shows_the_leak_at_an_inferred_loop(recorded_corpus, name):
    script = next(script for script in LEAKING if script.name == name)
    recording = recording_of(recorded_corpus, script)
    result = corpus.judge(script, bare(recording))

    assert result.has_right_line, result.leak


# Its holder says that replay_deque is bounded: without one it is a leak as good as any, for 100 steps.
UNBOUNDED = [script for script in CLEAN if script.path.stem != "replay_deque"]


@pytest.mark.parametrize("script", UNBOUNDED, ids=lambda script: script.name)
def test_a_clean_file_without_steps_has_no_finding(recorded_corpus, script):
    recording = recording_of(recorded_corpus, script)

    assert corpus.judge(script, bare(recording)).findings == []


def test_the_reported_growth_is_the_growth_of_the_allocator(recorded_corpus):
    """The trace's events are the truth: bytes allocated minus freed between the ends of two steps."""
    script = next(script for script in LEAKING if script.name == "leaking/outputs_list")
    recording = recording_of(recorded_corpus, script)
    trace, ends = recording.trace, recording.steps.end_event.tolist()
    sign = np.select([trace.action == Action.ALLOC, trace.action == Action.FREE_REQUESTED], [1, -1], 0)
    grown = int((sign * trace.block_size)[ends[-2] : ends[-1]].sum())

    assert corpus.judge(script, recording).leak.bytes_per_step == grown
