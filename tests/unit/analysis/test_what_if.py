"""The recorded requests under other settings, and which setting is advised."""

from threading import Thread

import captures
import pytest

from vramscope.analysis.settings_advice import Candidate, candidates, environment_line, settings_advice
from vramscope.analysis.what_if import BETWEEN, what_if
from vramscope.analysis.what_if.epochs import ends_of_epochs
from vramscope.errors import UsageError
from vramscope.loading import load
from vramscope.model.device import Process
from vramscope.model.marks import MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action, Trace

MIB = 1 << 20
A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


def program(*rows, **fields) -> Recording:
    """Rows of (action, number, MiB): each number is an address of its own."""
    columns = {
        "action": [row[0] for row in rows],
        "address": [row[1] << 32 for row in rows],
        "size": [row[2] * MIB for row in rows],
        "block_size": [row[2] * MIB for row in rows],
        "stack_id": [row[3] if len(row) > 3 else 0 for row in rows],
    }
    return Recording(trace=Trace.of(**columns), **fields)


def nines(n: int = 100, **fields) -> Recording:
    """Two blocks of 9 MiB fill a segment of 20; expandable segments put them one after the other."""
    return program(*((A, i, 9) for i in range(n)), **fields)


def test_the_driver_gives_whole_segments():
    # 2 MiB from a segment of 20; 30 MiB have one of their own.
    outcome = what_if(program((A, 1, 2), (A, 2, 30)))

    assert (outcome.peak_allocated_bytes, outcome.peak_reserved_bytes, outcome.n_segments) == (
        32 * MIB,
        50 * MIB,
        2,
    )
    assert outcome.fits


def test_a_replay_in_pieces_has_the_same_result_and_each_piece_is_a_small_part():
    recording, rests, outcomes = nines(5000), [], []

    def resting() -> None:
        BETWEEN.set(lambda: rests.append(1))
        outcomes.append(what_if(recording))

    other = Thread(target=resting)
    other.start()
    other.join()

    n_rests = len(rests)
    assert 5000 / n_rests <= 10
    assert outcomes == [what_if(recording)]
    assert len(rests) == n_rests  # a user waits for the replay of this thread, which goes on without a rest


def test_a_capacity_ends_it_where_a_request_does_not_fit():
    recording = program((A, 1, 30), (R, 1, 30), (C, 1, 30), (A, 2, 40), (A, 3, 50))

    outcome = what_if(recording, capacity_bytes=80 * MIB)

    # For the 40 the cache of 30 can stay; for the 50 it goes, and 90 do not fit.
    assert (outcome.failed_at, outcome.failed_bytes, outcome.n_retries) == (4, 50 * MIB, 1)
    assert outcome.peak_reserved_bytes == 70 * MIB
    assert what_if(recording, capacity_bytes=90 * MIB).fits


def test_expandable_segments_waste_no_ends():
    plain, expandable = what_if(nines()), what_if(nines(), conf="expandable_segments:True")

    assert (plain.peak_reserved_bytes, plain.n_segments) == (50 * 20 * MIB, 50)
    assert expandable.peak_reserved_bytes == expandable.peak_allocated_bytes == 900 * MIB


def test_a_block_that_waits_for_a_stream_serves_nobody_until_then():
    waits = program((A, 1, 30), (R, 1, 30), (A, 2, 30), (C, 1, 30))
    at_once = program((A, 1, 30), (R, 1, 30), (C, 1, 30), (A, 2, 30))

    assert what_if(waits).peak_reserved_bytes == 60 * MIB
    assert what_if(at_once).peak_reserved_bytes == 30 * MIB


@pytest.mark.parametrize(("name", "reserved"), [("empty_cache", 40), ("malloc", 70)])
def test_empty_cache_is_the_programs_own_doing(name, reserved):
    stacks = stacks_of([(name, "/torch/cuda/memory.py", 1), ("<module>", "train.py", 1)])
    stack = len(stacks.parent) - 1
    recording = program(
        (A, 1, 30), (R, 1, 30), (C, 1, 30), (Action.SEGMENT_FREE, 1, 30, stack), (A, 2, 40), stacks=stacks
    )  # fmt: skip

    assert what_if(recording).peak_reserved_bytes == reserved * MIB


def test_empty_cache_after_every_step_gives_back_what_is_free():
    steps = Steps.of(index=[0, 1], start_event=[0, 3], end_event=[3, 4])
    recording = program((A, 1, 30), (R, 1, 30), (C, 1, 30), (A, 2, 40), steps=steps)

    assert what_if(recording).peak_reserved_bytes == 70 * MIB
    assert what_if(recording, empty_cache_after="step").peak_reserved_bytes == 40 * MIB


def test_a_refused_request_is_given_up_where_it_would_fit():
    recording = program((A, 1, 30), (Action.OOM, 0, 100), (A, 2, 30))

    assert what_if(recording, capacity_bytes=60 * MIB).fits
    # Where it is served, the next 30 come out of the same 100.
    assert what_if(recording).peak_reserved_bytes == 130 * MIB


def test_a_refused_request_that_ended_the_program_has_to_be_served():
    recording = program((A, 1, 30), (Action.OOM, 0, 100), (R, 1, 30), (C, 1, 30))

    outcome = what_if(recording, capacity_bytes=120 * MIB)

    assert (outcome.failed_at, outcome.failed_bytes) == (1, 100 * MIB)
    assert what_if(recording, capacity_bytes=130 * MIB).fits
    assert what_if(recording).peak_reserved_bytes == 130 * MIB


@pytest.mark.parametrize(
    ("torch", "conf", "call"),
    [
        ("2.9.1", "garbage_collection_threshold:0.8", "torch.cuda.set_per_process_memory_fraction(0.95)"),
        ("2.13.0", "per_process_memory_fraction:0.95,garbage_collection_threshold:0.8", ""),
    ],
)
def test_where_a_card_is_short_collecting_garbage_is_tried_with_the_fraction_it_needs(torch, conf, call):
    recording = nines(process=Process(torch=torch))

    (found,) = [each for each in candidates(recording, is_short=True) if "garbage" in each.name]

    # Without a fraction the threshold does nothing; the environment can set one from 2.10 on.
    assert (found.conf, found.call) == (conf, call)
    assert not [each for each in candidates(recording) if "garbage" in each.name]


def test_a_fraction_is_one_of_the_whole_device():
    recording = program((A, 1, 30), (R, 1, 30), (C, 1, 30), (A, 2, 40), (A, 3, 20))
    room = {"capacity_bytes": 150 * MIB, "total_bytes": 200 * MIB}

    # 70 of 200 are enough for the cached 30 to stay; with 60 it has to go; 50 are too few.
    assert what_if(recording, memory_fraction=0.35, **room).n_retries == 0
    assert what_if(recording, memory_fraction=0.3, **room).n_retries == 1
    assert what_if(recording, memory_fraction=0.25, **room).failed_at == 4


def marked(*names: str, at: tuple[int, ...]) -> Marks:
    return Marks.of(kind=[MarkKind.MARK] * len(at), event=at, name=range(1, 1 + len(at)), names=("", *names))


def test_an_epoch_ends_where_the_program_says_so():
    rows = [(what, i, 30) for i in range(4) for what in (A, R, C)]
    recording = program(*rows, (A, 9, 40), marks=marked("Epoch 1", "checkpoint", at=(12, 3)))

    assert ends_of_epochs(recording).tolist() == [12]
    assert what_if(recording).peak_reserved_bytes == 70 * MIB
    assert what_if(recording, empty_cache_after="epoch").peak_reserved_bytes == 40 * MIB


def test_else_with_the_evaluation_after_its_training():
    kinds = [Phase.EVAL, *[Phase.BACKWARD] * 3, Phase.EVAL, Phase.EVAL, *[Phase.BACKWARD] * 3, Phase.EVAL]
    ends = range(1, 1 + len(kinds))
    phases = Phases.of(phase=kinds, start_event=range(len(kinds)), end_event=ends)
    steps = Steps.of(index=range(6), start_event=range(6), end_event=range(1, 7))

    # What is looked at before any training ends no epoch.
    assert ends_of_epochs(Recording(phases=phases, steps=steps)).tolist() == [6, 10]
    # A teacher that runs in every step ends none either.
    assert not len(ends_of_epochs(Recording(phases=phases, steps=steps.rows(slice(0, 3)))))


def test_epochs_that_nothing_tells_of_cannot_be_asked_about():
    with pytest.raises(UsageError, match="no epochs are known"):
        what_if(program((A, 1, 2)), empty_cache_after="epoch")


def test_settings_that_torch_would_refuse_are_refused():
    with pytest.raises(UsageError):
        what_if(program((A, 1, 2)), conf="roundup_power2_divisions:3")
    with pytest.raises(UsageError):
        what_if(program((A, 1, 2)), capacity_bytes=0)


@pytest.mark.parametrize("name", ["amp", "ckpt", "empty", "pools", "streams"])
def test_under_its_own_settings_a_genuine_history_needs_what_it_needed(name):
    path = captures.genuine_file(name)
    (recording,) = load(path).recordings

    outcome = what_if(recording)

    assert outcome.peak_reserved_bytes == recording.timeline().reserved_bytes.max()
    assert outcome.n_segments == recording.fragmentation().churn.n_made


# -------------------------------------------------------------------------------------- the advice


def test_without_pieces_nothing_is_tried_or_changed():
    advice = settings_advice(program((A, 1, 30), (A, 2, 200)))

    assert (advice.advised, advice.trials, advice.environment) == (None, (), "")
    assert advice.reason.startswith("change nothing")


def test_of_what_was_reserved_before_the_recording_no_setting_is_compared():
    # 500 MiB lie in the cache when it begins; the program needs 30.
    segments = Segments.of(address=[1 << 40], size=[500 * MIB], is_large=[True])
    blocks = Blocks.of(address=[1 << 40], size=[500 * MIB], state=[BlockState.INACTIVE], segment=[0])
    initial = Snapshot(segments=segments, blocks=blocks)

    advice = settings_advice(program((A, 1, 30), initial=initial))

    assert (advice.advised, advice.trials) == (None, ())
    assert "500 MiB of it before the recording began" in advice.reason
    assert advice.reason.endswith("record from the start of the program")


def test_the_simplest_setting_that_helps_is_advised_with_its_line():
    advice = settings_advice(nines())

    assert advice.advised is not None
    assert advice.advised.candidate.name == "expandable_segments:True"
    assert advice.environment == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert advice.reason == "expandable_segments:True saves 100 MiB of reserved memory"


def test_a_setting_that_spares_releases_is_advised():
    # Ten of 30 MiB come and go; then seven of 40 stay. What was cached serves them only in one piece.
    rows = [(A, i, 30) for i in range(10)] + [(what, i, 30) for i in range(10) for what in (R, C)]
    recording = program(*rows, *((A, 100 + i, 40) for i in range(7)))

    advice = settings_advice(recording, capacity_bytes=300 * MIB)

    assert advice.base.n_retries > 0
    assert advice.advised is not None
    assert advice.advised.outcome.n_retries == 0


def test_no_setting_makes_room_for_more_than_there_is():
    advice = settings_advice(program((A, 1, 100), (A, 2, 100)), capacity_bytes=150 * MIB)

    assert advice.advised is None
    assert "no setting makes that fit 150 MiB" in advice.reason


def test_what_was_allocated_earlier_makes_nothing_hopeless():
    # 900 MiB at the peak; when 400 are lacking only 300 of it are in use, in every third segment.
    rows = [(A, i, 9) for i in range(100)] + [(what, i, 9) for i in range(100) if i % 3 for what in (R, C)]
    recording = program(*rows, (A, 1000, 400))

    advice = settings_advice(recording, capacity_bytes=1000 * MIB)

    assert not advice.base.fits
    assert advice.base.failed_requested_bytes == 34 * 9 * MIB
    assert "no setting makes that fit" not in advice.reason


def test_what_fits_only_with_a_setting_is_advised():
    advice = settings_advice(nines(), capacity_bytes=950 * MIB)

    assert not advice.base.fits
    assert advice.advised is not None
    assert advice.advised.outcome.fits
    assert "it fits; as it is, it does not" in advice.reason


def test_what_was_set_already_is_kept():
    conf = "max_split_size_mb:512,roundup_power2_divisions:[256:1,>:4]"
    process = Process(torch="2.8.0", allocator={"PYTORCH_CUDA_ALLOC_CONF": conf})
    recording = nines(process=process)

    by_name = {trial.candidate.name: trial.candidate for trial in settings_advice(recording).trials}

    assert by_name["expandable_segments:True"].conf == f"{conf},expandable_segments:True"
    expected = "roundup_power2_divisions:[256:1,>:4],max_split_size_mb:64"
    assert by_name["max_split_size_mb:64"].conf == expected
    assert not any("large_segment" in name for name in by_name)


def test_the_line_has_the_name_that_every_torch_reads():
    # 2.9 warns that it is deprecated, and does not read the other one for CUDA.
    assert environment_line(Candidate("a:1", "a:1", 1)) == "PYTORCH_CUDA_ALLOC_CONF=a:1"
    assert environment_line(Candidate("empty_cache", "a:1", 3, empty_cache_after="step")) == ""
