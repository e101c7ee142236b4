"""Every error vramscope raises on purpose.

VramscopeError
├── CaptureError        recording could not start (never raised into a running training)
├── FormatError         a file is not what it claims, is damaged, or is not safe to read
├── StoreError          a trace directory cannot be written or read
├── UnknownNameError    a command, export, analysis, run, rank or device of that name does not exist
├── MissingExtraError   an optional package is needed; says the command that installs it
└── UsageError          asked wrongly (exit code 2)

A message says what happened, where (file, offset, event, rank), and what to do.
"""


class VramscopeError(Exception):
    """Anything that vramscope reports as one line instead of a traceback."""


class CaptureError(VramscopeError):
    """Recording could not start."""


class FormatError(VramscopeError):
    """A file is not what it claims to be, is damaged, or is not safe to read."""


class StoreError(VramscopeError):
    """A trace directory cannot be written or read."""


class UnknownNameError(VramscopeError):
    """A command, export, analysis, run, rank or device of that name does not exist."""


class MissingExtraError(VramscopeError):
    """An optional package is needed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'this needs {package}, which is not installed: pip install "vramscope[{extra}]"')


class UsageError(VramscopeError):
    """The user asked wrongly."""
