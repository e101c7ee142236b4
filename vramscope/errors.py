"""Every error vramscope raises on purpose.

VramscopeError
├── CaptureError        recording could not start (never raised into a running training)
├── FormatError         a file is not what it claims, is damaged, or is not safe to read
├── StoreError          a trace directory cannot be written or read
├── UnknownNameError    a command, export, analysis, run, rank or device of that name does not exist
├── MissingExtraError   an optional package is needed; the message gives the command that installs it
└── UsageError          an option or argument is wrong (exit code 2)

Each message states what happened, where (file, offset, event, rank), and what to do.
"""


class VramscopeError(Exception):
    """Base class of the errors that vramscope reports as one line instead of a traceback."""


class CaptureError(VramscopeError):
    """Recording could not start on this machine."""


class FormatError(VramscopeError):
    """A file is not what it claims to be, is damaged, or is not safe to read."""


class StoreError(VramscopeError):
    """A trace directory cannot be written or read."""


class UnknownNameError(VramscopeError):
    """A command, export, analysis, run, rank or device of that name does not exist."""


class MissingExtraError(VramscopeError):
    """An optional package is needed, and not installed."""

    def __init__(self, package: str, extra: str = "") -> None:
        command = f'"vramscope[{extra}]"' if extra else f'"{package}"' if "[" in package else package
        super().__init__(f"this needs {package}, which is not installed: pip install {command}")


class UsageError(VramscopeError):
    """An option or argument that the user gave is wrong."""
