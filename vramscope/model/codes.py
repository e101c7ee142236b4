"""The words for machines: codes of notes, kinds and severities of findings, causes of leaks.

A member is a string and prints as its value, so JSON and files have the value. Values are stable: a release
adds some and changes none. Each stands in ``codes.tsv`` with its meaning, and only there: the members here,
the stub ``codes.pyi`` for type checkers and ``docs/codes.md`` follow from it.
"""

from enum import Enum

from vramscope.package_data import words

QUANTITIES = ("requested", "allocated", "active", "reserved")
"""The quantities of every total, each including the one before it: requested, rounded up, with pending frees,
in segments."""


class Code(str, Enum):
    """A string out of a closed list; prints as its value."""

    def __str__(self) -> str:
        return str(self.value)

    @property
    def meaning(self) -> str:
        """What it means, in one sentence; '' for a code that ``codes.tsv`` does not list."""
        return words(__file__, "codes.tsv", type(self).__name__).get(self.value, "")


def _listed(name: str, meaning: str) -> type[Code]:
    """Return the enumeration of the codes that the table lists under *name*; ``gap`` becomes ``GAP``."""
    listed = {code.upper(): code for code in words(__file__, "codes.tsv", name)}
    found = Code(name, listed, module=__name__)
    found.__doc__ = meaning
    return found


NoteCode = _listed(
    "NoteCode", "What a note is about: something that is missing, doubtful, repaired or left out."
)
Severity = _listed("Severity", "How grave a finding is, the gravest first.")
FindingKind = _listed(
    "FindingKind", "What a finding is about; analyses of other distributions may add their own kinds."
)
LeakCause = _listed("LeakCause", "The mistake that makes memory grow: ``Finding.cause`` of a leak.")
