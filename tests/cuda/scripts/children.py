"""Processes that come up at once: forked from one that has imported torch, before it touches CUDA."""

import ctypes
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

warnings.filterwarnings("ignore", module="torch")  # an old torch and a new NumPy
import torch  # noqa: E402

# Here, where it touches no device, and once: the first optimizer imports the compiler, 2 s of CPU.
torch.optim.SGD([torch.zeros(1)])
# With the first snapshot that has Python stacks torch would import it: seconds, in every child.
getattr(torch, "_lazy_modules", set()).discard("_inductor")

Work = Callable[[], None]


def in_child(work: Work, out: Path, environment: Mapping[str, str] | None = None) -> Work | None:
    """Run *work* in a fork; what it says comes into ``out.stdout`` and ``out.stderr``, how it ended into
    ``out.status``.

    In the parent None, when the child has ended. In the child the work itself: return to the outermost level
    and do it there, so that an exception ends the program as it would any other.
    """
    sys.stdout.flush()
    pipes = {1: os.pipe(), 2: os.pipe()}  # no files: a full disk must not silence a child
    child = os.fork()
    if child:
        threads = [
            threading.Thread(target=_keep, args=(*pipes[number], out.with_suffix(suffix)))
            for number, suffix in ((1, ".stdout"), (2, ".stderr"))
        ]
        for thread in threads:
            thread.start()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for thread in threads:
            thread.join()
        out.with_suffix(".status").write_text(str(status))
        return None
    for number, (reader, writer) in pipes.items():
        os.dup2(writer, number)
        os.close(reader)
        os.close(writer)
    os.environ.update(environment or {})
    if os.environ.get("PYTORCH_CUDA_ALLOC_CONF"):  # read when torch was loaded
        torch.cuda.memory._set_allocator_settings(os.environ["PYTORCH_CUDA_ALLOC_CONF"])
    torch.backends.cudnn.enabled = torch.cuda.get_device_name() != "Stand-in GPU 0"
    torch.manual_seed(0)
    # Garbage would be collected after so many objects were made, ours among them, and frees memory.
    gc.disable()
    return work


def _keep(reader: int, writer: int, file: Path) -> None:
    os.close(writer)
    with open(reader, "rb") as pipe:
        file.write_bytes(pipe.read())


def linger() -> None:
    """torch aborts at exit while autograd's thread still lets go of its last backward."""
    time.sleep(0.3)


def cuda_runtime() -> ctypes.CDLL:
    """The one that torch has loaded, whichever version of CUDA it was built for."""
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return ctypes.CDLL(next(path for path in loaded if "libcudart" in path))
