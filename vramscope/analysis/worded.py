"""Findings in the words of ``worded.tsv``, which has a claim and an advice for each kind."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from vramscope.model.codes import Severity
from vramscope.model.finding import Finding, placed
from vramscope.model.stacks import Frame
from vramscope.package_data import rows
from vramscope.units import format_bytes

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@cache
def _words() -> Mapping[str, list[str]]:
    return {kind: words for kind, *words in rows(__file__, "worded.tsv")}


def worded(
    kind: str,
    n_bytes: int | None,
    frame: Frame | None = None,
    evidence: Mapping[str, Any] = _NOTHING,
    **figures: Any,
) -> Finding:
    """Return the finding of a *kind*, whose claim and advice name its bytes, its *evidence* and *figures*.

    Where a kind has several wordings, *kind* is one of them: ``sys.exception_kept``.
    """
    severity, claim, advice = _words()[kind]
    shown = {name: _shown(name, value) for name, value in {"n_bytes": n_bytes, **evidence, **figures}.items()}
    return Finding(
        kind.rpartition(".")[2], Severity(severity), claim.format(**shown), **placed(frame),
        n_bytes=n_bytes, advice=advice.format(**shown) or None, evidence=evidence,
    )  # fmt: skip


def _shown(name: str, value: Any) -> str:
    if isinstance(value, int):
        return format_bytes(value) if name.endswith("bytes") else f"{value:,}"
    return str(value)
