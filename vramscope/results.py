"""Every type that a method of ``Recording`` or ``Run`` returns or takes, at one address.

``from vramscope.results import Peak, Finding, Category`` is for annotations, ``isinstance`` and ``help``. The
modules that define these types may move; this one stays. The types stand in the stub beside it.
"""

import re
from importlib import import_module
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_TYPES = re.findall(r"^from (\S+) import (\w+) as (\w+)$", _STUB, re.MULTILINE)

__all__ = sorted(public for _, _, public in _TYPES)

for _module, _name, _public in _TYPES:
    globals()[_public] = getattr(import_module(_module), _name)
