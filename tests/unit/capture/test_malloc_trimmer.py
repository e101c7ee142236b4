"""Free memory that ``malloc`` keeps is returned to the system while a recording runs."""

import subprocess
import sys

import pytest

_CHILD = """
import ctypes, os
from vramscope.recorder.notifiers.malloc_trimmer import MallocTrimmer

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

memory = MallocTrimmer(every_s=0)
before = resident()
blocks = [libc.malloc(100_000) for _ in range(2_000)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
held = resident()
# Every twentieth stays, so that no end of the heap is free.
for block in (block for i, block in enumerate(blocks) if i % 20):
    libc.free(block)
freed = resident()
memory.trim_if_grown()
print(before, held, freed, resident())
memory.trim_if_grown()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has malloc_trim")
def test_free_memory_between_used_blocks_is_returned_to_the_system() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=120, check=True
    )
    before, held, freed, trimmed = map(int, found.stdout.split())
    # 2,000 blocks of 100,000 bytes, 100 of which stay in use. malloc itself returned nothing.
    assert held - before > 190e6
    assert freed > held - 20e6
    assert trimmed - before < 30e6
