"""Upload a run that was recorded to a URL, where its own process did not finish that."""

import os
import signal
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from vramscope.commands import described
from vramscope.errors import StoreError, UsageError

if TYPE_CHECKING:
    from vramscope.remote.upload import Upload

_LOOK_EVERY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
"""The pauses between attempts while the store is away: each is twice the one before, up to the longest."""
_MIB = 1 << 20
_GROWING_BYTES_PER_S = _MIB
"""A store cannot append, so the part that grows is sent again as a whole: at most this much on average."""


def run(args: Namespace) -> int:
    """Upload what the store does not have yet; return the exit code."""
    from vramscope.remote.upload import Upload
    from vramscope.store.read.rank import RankReader

    if args.parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.nice(10)
        upload = Upload(Path(args.path), args.to, args.mib_per_s * _MIB)
        return _follow(upload, args)
    for rank in _ranks(Path(args.path)):
        upload = Upload(rank, _url(rank, args.to), args.mib_per_s * _MIB)
        if RankReader(rank).is_running():
            raise UsageError(f"{rank}: is being recorded; its own process uploads it")
        upload.send(is_final=True)
        print(f"{rank.name}: {upload.url}/{rank.name} has the whole trace")
    return 0


def _ranks(path: Path) -> list[Path]:
    from vramscope.store.directory import is_rank, is_rank_name

    if is_rank(path):
        return [path]
    found = sorted(each for each in path.glob("rank*") if is_rank_name(each.name) and is_rank(each))
    if not found:
        raise StoreError(f"{path}: no run was recorded here")
    return found


def _url(rank: Path, given: str | None) -> str:
    from vramscope.remote import is_url
    from vramscope.remote.upload import read_state

    if given is not None:
        if not is_url(given):
            raise UsageError(f"--to {given}: a URL, such as s3://bucket/run")
        return given.rstrip("/")
    state = read_state(rank)
    if state is None:
        raise UsageError(f"{rank}: was not recorded to a URL; say where to upload it: --to s3://bucket/run")
    return state.wanted_url


def _follow(upload: "Upload", args: Namespace) -> int:
    """Upload until the recorder closes our standard input, or its process is gone; then send the rest."""
    from vramscope.remote.upload import remove_uploaded

    remove_uploaded(Path(args.path))
    known: tuple[int, int] | None = None
    pause_s, next_s, last_error = _FIRST_PAUSE_S, 0.0, ""
    # When the part that grows is sent next: what came after it is lost with the machine.
    growing_s = time.monotonic() + args.every_s
    while not _is_over(args.parent, _LOOK_EVERY_S):
        now, is_due = upload.state_of_spool(), time.monotonic() >= growing_s
        if (now == known and not is_due) or time.monotonic() < next_s:
            continue
        last_error = _attempt(upload, last_error, is_final=False, is_growing_sent=is_due)
        if last_error:
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        else:
            known, pause_s = now, _FIRST_PAUSE_S
            if is_due:
                growing_s = time.monotonic() + max(args.every_s, upload.growing_bytes / _GROWING_BYTES_PER_S)
        next_s = time.monotonic() + pause_s
    end_s, pause_s = time.monotonic() + args.patience, _FIRST_PAUSE_S / 2
    while True:
        last_error = _attempt(upload, last_error, is_final=True)
        if upload.is_whole or time.monotonic() + pause_s > end_s:
            return 0 if upload.is_whole else 1
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S / 4)


def _is_over(parent: int, timeout_s: float) -> bool:
    """Wait, and return whether the recorder has ended: it closed the pipe, or its process is gone."""
    import select

    readable, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return bool(readable) or os.getppid() != parent


def _attempt(upload: "Upload", last_error: str, *, is_final: bool, is_growing_sent: bool = False) -> str:
    """Send; return the error, which is printed once and not at every attempt."""
    try:
        upload.send(is_final=is_final, is_growing_sent=is_growing_sent)
    except StoreError as error:
        # At the end nobody waits for a store that refuses: the answer needs other credentials.
        if is_final and isinstance(error.__cause__, PermissionError):
            raise
        if not last_error:
            text = f"vramscope: {error}; the recording goes on, and uploading is tried again"
            print(text, file=sys.stderr, flush=True)
        return str(error)
    return ""


COMMAND = described("upload", run)
