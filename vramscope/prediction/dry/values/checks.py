"""Which answer lets a check pass, if the other one only raises? A training that goes well passes them all."""

import dis
from functools import cache
from types import CodeType, FrameType

from vramscope.prediction.dry.doubts import is_ours

_MOST_INSTRUCTIONS = 400
# What may stand between the question and the jump that it decides.
_BETWEEN = frozenset({"TO_BOOL", "EXTENDED_ARG", "NOP", "COPY", "PRECALL"})
_WITHOUT_CONDITION = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_NO_INTERRUPT")


def passes(frame: FrameType | None) -> bool | None:
    """Return the truth with which the program goes on, if the other one leads to ``raise`` and nowhere else.

    *frame* is asking: by ``if``, ``assert`` or ``not``, by ``bool()`` or a function that returns what it is.
    """
    is_inverted = False
    while frame is not None:
        if not is_ours(frame):
            truth, is_returned = _wanted(frame.f_code, frame.f_lasti)
            if truth is None or not is_returned:
                return None if truth is None else truth != is_inverted
            is_inverted = is_inverted == truth
        frame = frame.f_back
    return None


@cache
def _wanted(code: CodeType, asks_at: int) -> tuple[bool | None, bool]:
    """Which truth an instruction wants, and whether a caller has to say so, of what is returned."""
    steps, places = _instructions(code)
    # A call that goes on stands at the end of the cache behind its instruction.
    at, wants = places[max(offset for offset in places if offset <= asks_at)], True
    if steps[at].opname.startswith(("CALL", "CONTAINS_OP")):
        wants = not (steps[at].opname == "CONTAINS_OP" and steps[at].arg)
        at += 1
    while steps[at].opname in _BETWEEN or steps[at].opname == "UNARY_NOT":
        wants = wants != (steps[at].opname == "UNARY_NOT")
        at += 1
    name = steps[at].opname
    if name == "RETURN_VALUE":
        return wants, True
    if "_IF_" not in name or "NONE" in name:
        return None, False
    jumped, passed = _only_raises(code, places[steps[at].argval]), _only_raises(code, at + 1)
    return (None if jumped == passed else wants == (passed == ("TRUE" in name))), False


@cache
def _instructions(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    found = list(dis.get_instructions(code))
    return found, {one.offset: place for place, one in enumerate(found)}


def _only_raises(code: CodeType, place: int) -> bool:
    """Whether every way from an instruction ends with ``raise``."""
    steps, places = _instructions(code)
    waiting: list[int] = [place]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_INSTRUCTIONS:
        at = waiting.pop()
        name = steps[at].opname
        if at in seen or name == "RAISE_VARARGS":
            continue
        seen.add(at)
        if name.startswith(("RETURN", "RERAISE", "YIELD")):
            return False
        if steps[at].opcode in _JUMPS:
            if steps[at].argval <= steps[at].offset:
                return False
            waiting.append(places[steps[at].argval])
        if name not in _WITHOUT_CONDITION:
            waiting.append(at + 1)
    return not waiting


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
