"""Finds the object of a library on a way that collects until its ``reset()`` is called, as a metric."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from vramscope.capture.holders.code_places import is_program
from vramscope.capture.holders.containers import dict_of
from vramscope.capture.holders.roots import Word

_NAMES = ("local", "global", "attribute")


def reset_of(words: Sequence[Word], things: Sequence[Any]) -> Iterator[Word]:
    """Yield ``("reset", variable)`` for the first such object; the word at each index leads to that thing.

    A third item says that the metric can keep its values on the CPU.
    """
    text = ""
    for word, thing in zip(words, things, strict=True):
        if word[0] in _NAMES:
            text = f"{text}.{word[1]}" if text else str(word[1])
        elif word[0] == "key":
            text = f"{text}[{word[1]}]"
        else:
            return
        if _collects(type(thing)):
            own = dict_of(thing) or {}
            yield ("reset", text, *(["compute_on_cpu"] if "compute_on_cpu" in own else []))
            return


def _collects(kind: type) -> bool:
    """Whether a library's class has both ``update`` and ``reset``."""
    name = kind.__module__
    if not isinstance(name, str) or name.partition(".")[0] in ("torch", "builtins", "collections"):
        return False
    has = {attribute for base in kind.__mro__ for attribute in ("update", "reset") if attribute in vars(base)}
    return len(has) == 2 and not is_program(getattr(sys.modules.get(name), "__file__", None))
