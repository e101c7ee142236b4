"""A search is completed with names that find something, and only the term at the caret changes."""

from dataclasses import replace

import pytest

import vramscope
from vramscope.analysis.allocations import Columns, Vocabulary, completed, parse, vocabulary
from vramscope.analysis.allocations.language import Field
from vramscope.analysis.by_module import owners_of
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording

SAMPLES = ("transformer", "transformer-cuda", "gan-retain-graph")
KNOWN = Vocabulary(
    {
        Field.CATEGORY: ["parameter", "optimizer-state"],
        Field.PHASE: ["forward", "backward", "warm?up"],
        Field.MODULE: ["blocks.0.mlp", "head"],
        Field.STEP: ["0", "1", "10", "11"],
        Field.STREAM: ["0"],
        Field.FILE: ["train.py", "my*net.py"],
        Field.FUNCTION: ["forward", "softmax_backward"],
    },
    ["train.py:13", "train.py:130"],
)


def names_of(recording: Recording) -> Vocabulary:
    found = recording.lifetimes()
    assigned = recording.categories().assigned
    return vocabulary(
        Columns(recording, found, assigned.category, lambda: owners_of(recording, found, assigned))
    )


def texts(text: str, known: Vocabulary = KNOWN) -> list[str]:
    return [option.text for option in completed(text, len(text), known).options]


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_name_finds_an_allocation(sample: str) -> None:
    recording = vramscope.load(f"sample_traces/{sample}").recordings[0]
    known = names_of(recording)

    assert set(known.values) == {
        Field.CATEGORY, Field.PHASE, Field.MODULE, Field.STEP, Field.FILE, Field.FUNCTION, Field.STREAM,
        Field.ANNOTATION, Field.LINE, Field.LIVE,
    }  # fmt: skip
    searches = [f"{field}:{value}" for field, values in known.values.items() for value in values[:25]]
    for text in [*searches, *known.places[:25]]:
        assert len(recording.allocations(text)), text


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_names_of_a_field_leave_nothing_out(sample: str) -> None:
    recording = vramscope.load(f"sample_traces/{sample}").recordings[0]
    known = names_of(recording)

    for field in (Field.CATEGORY, Field.PHASE, Field.STREAM):
        rest = " ".join(f"-{field}:{value}" for value in known.values[field])
        # What was allocated before the recording is of no phase.
        assert not len(recording.allocations(f"{rest} -before")), field


def test_names_are_those_of_the_program_not_of_its_libraries() -> None:
    known = names_of(vramscope.load("sample_traces/transformer").recordings[0])

    assert any(place.startswith("transformer.py:") for place in known.places)
    assert not any(name in known.values[Field.FILE] for name in ("module.py", "functional.py", "adamw.py"))


def test_a_name_with_blanks_and_brackets_is_found_by_what_is_offered() -> None:
    recording = vramscope.load("sample_traces/transformer").recordings[0]
    phases = recording.phases
    names = tuple("my [first] phase" if name else name for name in phases.names)
    if not any(names):
        names, phases = (*names, "my [first] phase"), replace(phases, names=(*phases.names, ""))
    renamed = replace(
        phases, names=names, phase=phases.phase * 0 + int(Phase.USER), name=phases.name * 0 + len(names) - 1
    )
    other = replace(recording, phases=renamed)
    offered = [value for value in names_of(other).values[Field.PHASE] if value.startswith("my")]

    assert offered == ["my??first]?phase"]
    assert len(other.allocations(f"phase:{offered[0]}"))


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("categ", ["category:"]),
        ("si", ["size>"]),
        ("size>6", ["size>64MiB"]),
        ("life<", ["life<1ms", "life<100ms", "life<2s"]),
        ("category:", ["category:parameter", "category:optimizer-state"]),
        ("category:state", ["category:optimizer-state"]),
        ("-CATEGORY:para", ["-category:parameter"]),
        ("phase:ward", ["phase:forward", "phase:backward"]),
        ("module:m", ["module:blocks.0.mlp"]),
        ("step:1", ["step:1", "step:10", "step:11"]),
        ("train.py:13", ["train.py:13", "train.py:130"]),
        ('"tr', ['"train.py"']),
        ('"my', []),
        ("mlp", ["module:blocks.0.mlp"]),
        ("-back", ["-phase:backward", "-function:softmax_backward"]),
        ("nothing of the kind", []),
        ("foo:bar", []),
        ("at::native", []),
    ],
)
def test_what_is_offered_goes_on_with_what_was_typed(text: str, offered: list[str]) -> None:
    assert texts(text) == offered


def test_without_letters_the_fields_are_offered_with_their_meaning() -> None:
    options = completed("", 0, KNOWN).options

    assert [option.text for option in options[:2]] == ["category:", "phase:"]
    assert all(option.meaning for option in options)


@pytest.mark.parametrize(
    ("before", "typed", "after"),
    [("", "ph", ""), ("softmax ", "ph", ""), ("softmax ", "ph", " size>1k"), ("a  ", "", "  b")],
)
def test_the_term_at_the_caret_alone_is_replaced(before: str, typed: str, after: str) -> None:
    text = before + typed + after
    found = completed(text, len(before + typed), KNOWN)

    assert text[: found.start] == before
    assert text[found.end :] == after
    assert found.options


def test_letters_after_the_caret_belong_to_the_term_that_is_replaced() -> None:
    found = completed("category:xyz alive", len("category:"), KNOWN)

    assert (found.start, found.end) == (0, len("category:xyz"))
    assert [option.text for option in found.options] == ["category:parameter", "category:optimizer-state"]


def test_what_is_offered_is_understood() -> None:
    for text in ("", "c", "p", "s", "f", "m", "-a", '"f', "train", "size<", "step:", "stream:"):
        for offered in texts(text):
            value = "model.py:1" if offered == "line:" else "1"
            whole = offered + value if offered.endswith((":", "<", ">")) else offered
            assert len(parse(whole)) == 1, offered


def test_of_many_names_a_dozen_are_offered() -> None:
    many = replace(KNOWN, places=[f"train.py:{line}" for line in range(1000)])

    assert len(texts("train", many)) == 12
