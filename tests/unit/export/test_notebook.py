"""A recording shows its peak and its course in a notebook, with names as text."""

from dataclasses import replace
from xml.etree import ElementTree as ET

from vramscope.model.device import Device
from vramscope.model.marks import Note
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

MIB = 1 << 20


def recording() -> Recording:
    sizes = [64 * MIB, 8 * MIB, 16 * MIB, 16 * MIB]
    actions = [Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED]
    trace = Trace.of(action=actions, address=[1, 1, 9 * MIB, 9 * MIB], size=sizes, block_size=sizes)
    return Recording(trace=trace, device=Device(name="<b>GPU</b>"), notes=(Note("x", "lost & found"),))


def test_it_says_the_peak_and_draws_it() -> None:
    tree = ET.fromstring(recording()._repr_html_())
    allocated = tree.findall(".//polygon")[1].attrib["points"].split()

    assert "Peak 24.0 MiB allocated (event 3), 64.0 MiB reserved at most" in "".join(tree.itertext())
    heights = [float(point.split(",")[1]) for point in allocated]
    assert min(heights) == round(48 - 24 / 64 * 46, 1)


def test_names_and_notes_are_text() -> None:
    said = recording()._repr_html_()

    assert "&lt;b&gt;GPU&lt;/b&gt;" in said
    assert "lost &amp; found" in said


def test_an_empty_recording_says_so() -> None:
    assert "No allocator events" in replace(recording(), trace=Trace.of())._repr_html_()
