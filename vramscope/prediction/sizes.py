"""Arguments of a program that are sizes: its batch, its sequence length.

A size is an option of the program that is named (``--batch-size 32``, ``batch_size=32``), or a placeholder
(``{batch}``) anywhere in its arguments.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vramscope.errors import UsageError

_BATCH = (
    "batch_size", "batch", "bs", "train_batch_size", "per_device_train_batch_size", "micro_batch_size",
    "device_batch_size", "local_batch_size",
)  # fmt: skip
_SEQUENCE = (
    "block_size", "seq_len", "seq_length", "seqlen", "sequence_length", "max_length", "max_seq_length",
    "max_seq_len", "context_length",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a program, and where it stands in its arguments."""

    name: str
    value: int
    """The size as it is."""
    template: tuple[str, ...]
    """All arguments of the program, with ``\\0`` where the size stands."""

    def arguments(self, value: int) -> list[str]:
        """Return the arguments with another size."""
        return [each.replace("\0", str(value)) for each in self.template]


def asked_size(text: str, arguments: Sequence[str], script: str) -> Size:
    """Return the size that ``NAME`` or ``NAME=START`` names; raises UsageError."""
    name, _, start = text.partition("=")
    if start and not (start.isdigit() and int(start)):
        raise UsageError(f"--largest {text}: a size to start with is a number above 0, as in {name}=8")
    placeholder = "{" + name + "}"
    if any(placeholder in each for each in arguments):
        if not start:
            raise UsageError(f"--largest {name}: say where to start, as in --largest {name}=8")
        return Size(name, int(start), tuple(each.replace(placeholder, "\0") for each in arguments))
    found = _named(arguments, name)
    if found is None:
        raise UsageError(
            f"--largest {name}: {script} is given no argument of that name; give it one (--{name} 8), "
            f"or write {placeholder} where the size stands"
        )
    return Size(name, int(start) if start else found.value, found.template)


def known_sizes(arguments: Sequence[str]) -> tuple[Size | None, Size | None]:
    """Return the batch size and the sequence length among a program's arguments; None where not given."""
    batch, sequence = (
        next((size for name in names if (size := _named(arguments, name))), None)
        for names in (_BATCH, _SEQUENCE)
    )
    return batch, sequence


def without_placeholders(sizes: Sequence[Size], arguments: Sequence[str]) -> list[str]:
    """Return the arguments with every placeholder at the size that it starts with."""
    found = list(arguments)
    for size in sizes:
        found = [each.replace("{" + size.name + "}", str(size.value)) for each in found]
    return found


def _named(arguments: Sequence[str], name: str) -> Size | None:
    """Return the last option of that name, as most parsers do."""
    wanted = _plain(name)
    for at in reversed(range(len(arguments))):
        option, equals, value = arguments[at].partition("=")
        if _plain(option) != wanted:
            continue
        if equals and value.isdigit():
            return Size(name, int(value), _replaced(arguments, at, f"{option}=\0"))
        follows = arguments[at + 1] if at + 1 < len(arguments) else ""
        if option.startswith("-") and follows.isdigit():
            return Size(name, int(follows), _replaced(arguments, at + 1, "\0"))
    return None


def _plain(option: str) -> str:
    return re.sub(r"^-+", "", option).replace("-", "_").lower()


def _replaced(arguments: Sequence[str], at: int, text: str) -> tuple[str, ...]:
    return (*arguments[:at], text, *arguments[at + 1 :])
