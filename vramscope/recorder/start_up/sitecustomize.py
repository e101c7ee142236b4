"""Python imports this at the start of every process below ``vramscope run COMMAND``: it waits for torch.

Only when the process has imported torch is vramscope imported and the recording begun. The program's own
``sitecustomize``, which this one hides, runs as if this folder were not on the path.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_HOME = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- pathlib takes 10 ms to import
_WAITER = os.path.join(_HOME, "..", "..", "commands", "_when_torch.py")  # noqa: PTH118


class _OwnRecording:
    """The recording of this process; whatever prevents it is one line on stderr."""

    def __enter__(self) -> None:
        try:
            from vramscope.recorder.from_outside.below_a_command import begin

            begin()
        except Exception as error:  # noqa: BLE001 -- the program goes on without a recording
            why = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"vramscope: process {os.getpid()} is not recorded: {why} ({sys.executable})\n")

    def __exit__(self, *_: object) -> None:
        """Do nothing: the recording ends with the process."""


def _wait_for_torch() -> None:
    # By its path: this Python may have no vramscope, which matters only if the program imports torch.
    spec = spec_from_file_location("_vramscope_when_torch", _WAITER)
    if spec is not None and spec.loader is not None:
        waiter = module_from_spec(spec)
        spec.loader.exec_module(waiter)
        waiter.WhenTorch(_OwnRecording()).__enter__()


def _import_the_next() -> None:
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _HOME]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        following = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(following)


try:
    _wait_for_torch()
except Exception as error:  # noqa: BLE001 -- a program must start, whatever fails here
    sys.stderr.write(f"vramscope: process {os.getpid()} is not recorded: {error}\n")
_import_the_next()
