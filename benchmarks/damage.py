"""Damages thousands of copies of recordings, and checks that none of them is shown as whole.

    make bench-damage
    python benchmarks/damage.py --copies 2000 --seed 0

Three recordings of ``sample_traces/`` are written again by the current writer, then copied and damaged:
bytes changed, files cut, swapped, doubled, deleted, exchanged with those of another recording. Each copy ends
in one class. The last three must be empty:

- same: every column of every table is the undamaged one's;
- refused: one error that names the file;
- noted: something differs, and a note that the undamaged recording does not have says so;
- silent: something differs, without a note;
- traceback: an error that is no refusal; hang: no answer within 20 seconds.

For comparison it also damages a recording that was killed, one in parts, and the same recordings as written
before checksums existed (all of these note that they have none, which does not count as a note here).
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import vramscope
from vramscope.cli import main as command_line
from vramscope.errors import VramscopeError
from vramscope.model.device import Process
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome, Recording
from vramscope.model.table import Table
from vramscope.store.write.writer import Writer

SAMPLES = Path(__file__).parents[1] / "sample_traces"
NAMES = ("transformer", "gan-retain-graph", "transformer-cuda")
CLASSES = ("same", "refused", "noted", "silent", "traceback", "hang")
_SECONDS_PER_COPY = 20
_COPIES_PER_PROCESS = 100
_N_FLUSHES = 8

Damage = Callable[[random.Random, Path, Path], str]
"""A function that damages a rank's directory, given another recording's, and returns what it did."""


# ------------------------------------------------------------------------------ recordings


def write_again(
    name: str, run: Path, *, started_ns: int, is_killed: bool = False, max_bytes: int = 0
) -> None:
    """Write a sample by the current writer, in several flushes."""
    (recording,) = vramscope.load(SAMPLES / name).recordings
    writer = Writer(
        run,
        source=recording.source,
        process=Process(host=recording.process.host, torch=recording.process.torch),
        devices=[recording.device],
        started_ns=started_ns,
        max_bytes=max_bytes or None,
    )
    device = recording.device.index
    for note in recording.notes:
        if note.code != "no_checksums":
            writer.note(note, device)
    writer.stacks(_stack_rows(recording))
    writer.pools(recording.pools, device)
    writer.state(recording.initial, device, reported=False)
    ends = np.linspace(0, len(recording.trace), _N_FLUSHES + 1).astype(int).tolist()
    for first, end in pairwise(ends):
        writer.append(recording.trace.rows(slice(first, end)), device)
        for table in (recording.marks, recording.labels, recording.holders, recording.counters):
            is_now = (table.event >= first) & (table.event < end + (end == ends[-1]))
            writer.append(table.rows(is_now), device)
        if max_bytes:
            writer.compact()
    if len(recording.counters):
        early = recording.counters.event < 0
        writer.append(recording.counters.rows(early), device)
    if recording.final is not None:
        writer.state(recording.final, device, reported=True)
    if not is_killed:
        writer.close(Outcome.FINISHED)


def _stack_rows(recording: Recording) -> list[tuple[int, str, str, int]]:
    stacks = recording.stacks
    return [(int(stacks.parent[node]), *stacks.frame(node)) for node in range(1, len(stacks))]


def make_recordings(home: Path) -> dict[str, list[Path]]:
    """Return the recordings of each group."""
    started = time.time_ns()
    groups: dict[str, list[Path]] = {
        "with checksums": [],
        "killed": [],
        "in parts": [],
        "before checksums": [],
    }
    for at, name in enumerate(NAMES):
        groups["with checksums"].append(home / name)
        write_again(name, home / name, started_ns=started + at)
        old = home / "before" / name
        shutil.copytree(SAMPLES / name, old)
        groups["before checksums"].append(old)
    write_again(NAMES[0], home / "killed", started_ns=started + 10, is_killed=True)
    groups["killed"].append(home / "killed")
    write_again(NAMES[0], home / "parts", started_ns=started + 11, max_bytes=200_000)
    groups["in parts"].append(home / "parts")
    return groups


# ------------------------------------------------------------------------------ damage


def _files(rank: Path) -> list[Path]:
    return sorted(path for path in rank.rglob("*") if path.is_file())


def _streams(rank: Path) -> list[Path]:
    return [path for path in _files(rank) if path.suffix == ".arrows"]


def _overwrite(chance: random.Random, path: Path, n_bytes: int) -> str:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    new = chance.randbytes(n_bytes)
    data[at : at + n_bytes] = new[: len(data) - at]
    path.write_bytes(data)
    return f"{n_bytes} bytes of {path.name} at {at}"


def ends_of_messages(path: Path) -> list[int]:
    """Return 0 and the end of each message of a stream, by Arrow's own reader."""
    import pyarrow as pa

    found = [0]
    with pa.OSFile(str(path)) as file:
        while file.tell() < file.size():
            pa.ipc.read_message(file)
            found.append(file.tell())
    return found


def flip_bit(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_files(rank))
    data = bytearray(path.read_bytes())
    at, bit = chance.randrange(len(data)), chance.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} of {path.name}"


def change_bytes(chance: random.Random, rank: Path, _other: Path) -> str:
    return _overwrite(chance, chance.choice(_files(rank)), chance.choice((1, 8, 64, 512)))


def change_several(chance: random.Random, rank: Path, other: Path) -> str:
    return "; ".join(flip_bit(chance, rank, other) for _ in range(chance.choice((2, 3))))


def zero_block(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_files(rank))
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data)) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)
    return f"zeros in {path.name} at {at}"


def cut(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_files(rank))
    size = chance.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} cut at {size}"


def cut_at_message(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_streams(rank))
    size = chance.choice(ends_of_messages(path)[:-1])
    os.truncate(path, size)
    return f"{path.name} cut at the message that ends at {size}"


def rearrange_messages(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_streams(rank))
    data, ends = path.read_bytes(), ends_of_messages(path)
    messages = [data[first:end] for first, end in pairwise(ends)]
    at = chance.randrange(len(messages))
    how = chance.choice(("removed", "doubled", "moved"))
    message = messages.pop(at)
    if how == "doubled":
        messages[at:at] = [message, message]
    elif how == "moved":
        messages.insert(chance.randrange(len(messages) + 1), message)
    path.write_bytes(b"".join(messages))
    return f"message {at} of {path.name} {how}"


def append(chance: random.Random, rank: Path, other: Path) -> str:
    path = chance.choice(_streams(rank))
    source = chance.choice((path, chance.choice(_streams(rank)), chance.choice(_streams(other))))
    data = source.read_bytes() if chance.random() < 0.8 else chance.randbytes(chance.randrange(1, 4096))
    with path.open("ab") as file:
        file.write(data)
    return f"{source.name} appended to {path.name}"


def delete(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_files(rank))
    path.unlink()
    return f"{path.name} deleted"


def swap(chance: random.Random, rank: Path, _other: Path) -> str:
    one, two = chance.sample(_files(rank), 2)
    between = rank / "between"
    one.rename(between)
    two.rename(one)
    between.rename(two)
    return f"{one.name} and {two.name} swapped"


def copy_over(chance: random.Random, rank: Path, _other: Path) -> str:
    one, two = chance.sample(_files(rank), 2)
    shutil.copyfile(one, two)
    return f"{one.name} copied over {two.name}"


def rename(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_streams(rank))
    name = path.name.replace("-0.", "-1.") if chance.random() < 0.5 else f"old-{path.name}"
    path.rename(path.with_name(name))
    return f"{path.name} renamed {name}"


def foreign(chance: random.Random, rank: Path, other: Path) -> str:
    path = chance.choice(_files(other))
    target = rank / path.relative_to(other)
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(path, target)
    return f"{path.name} of another recording"


def odd_file(chance: random.Random, rank: Path, _other: Path) -> str:
    path = chance.choice(_files(rank))
    path.unlink()
    how = chance.choice(("directory", "pipe", "device", "loop", "empty", "sparse"))
    if how == "directory":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "loop":
        path.symlink_to(path.name)
    else:
        path.touch()
        os.truncate(path, 0 if how == "empty" else 1 << 40)
    return f"{path.name} became {how}"


def move_directories(chance: random.Random, rank: Path, _other: Path) -> str:
    how = chance.choice(("renamed", "copied", "part", "far part"))
    if how == "renamed":
        rank.rename(rank.with_name("rank1"))
    elif how == "copied":
        shutil.copytree(rank, rank.with_name("rank1"))
    else:
        part = rank / ("part1" if how == "part" else "part999999999")
        if part.exists():
            part = rank / "part7777"
        part.mkdir()
        path = chance.choice(_streams(rank))
        shutil.copyfile(path, part / path.name)
    return f"directory {how}"


DAMAGES: tuple[Damage, ...] = (
    flip_bit,
    change_bytes,
    change_several,
    zero_block,
    cut,
    cut_at_message,
    rearrange_messages,
    append,
    delete,
    swap,
    copy_over,
    rename,
    foreign,
    odd_file,
    move_directories,
)


# ------------------------------------------------------------------------------ what a copy shows


def content(run: Path) -> tuple[str, set[str]]:
    """Return a digest of everything in a run except its notes, and the notes."""
    found = vramscope.load(run)
    digest = hashlib.sha256()
    for part in _parts((found.outcome, found.error, found.recordings)):
        digest.update(part)
    notes = [*found.notes, *(note for recording in found.recordings for note in recording.notes)]
    return digest.hexdigest(), {note.text for note in notes if note.code != "no_checksums"}


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Note):
        return
    if isinstance(value, Table):
        for name, column in value.columns():
            yield f"{name} {len(column)}".encode()
            yield np.ascontiguousarray(column).tobytes()
        others = [getattr(value, f.name) for f in fields(value) if f.name not in value.DTYPES]  # type: ignore[arg-type]
        yield repr(others).encode()
    elif is_dataclass(value):
        for f in fields(value):
            yield f.name.encode()
            yield from _parts(getattr(value, f.name))
    elif isinstance(value, (tuple, list)):
        yield f"{len(value)}".encode()
        for each in value:
            yield from _parts(each)
    else:
        yield repr(value).encode()


def look(run: Path, whole: tuple[str, set[str]]) -> str:
    """Return the class of a damaged copy, with a traceback's last line."""
    try:
        digest, notes = content(run)
        if digest == whole[0]:
            return "same"
        _report(run)
    except VramscopeError:
        return "refused"
    except TimeoutError:
        return "hang"
    except Exception as error:  # noqa: BLE001 -- what this benchmark looks for
        return f"traceback {type(error).__name__}: {error}"
    return "noted" if notes - whole[1] else "silent"


def _report(run: Path) -> None:
    """Run every analysis of a report; exceptions pass through."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        command_line(["--debug", "report", str(run)])


def examine(recordings: list[Path], seed: int, first: int, end: int) -> Iterator[tuple[str, str]]:
    """Return class and damage of the copies [first, end) of a seed."""
    whole = {run: content(run) for run in recordings}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(first, end):
            chance = random.Random(seed * 1_000_003 + number)
            run = recordings[number % len(recordings)]
            other = chance.choice([each for each in recordings if each != run] or [run])
            copy = Path(directory) / str(number) / run.name
            shutil.copytree(run, copy)
            damage = DAMAGES[number // len(recordings) % len(DAMAGES)]
            what = damage(chance, copy / "rank0", other / "rank0")
            signal.alarm(_SECONDS_PER_COPY)
            found = look(copy, whole[run])
            signal.alarm(0)
            yield found, f"{number} {run.name}: {what}"
            shutil.rmtree(copy.parent)


def _too_long(*_: object) -> None:
    raise TimeoutError


# ------------------------------------------------------------------------------ all of it


def run_apart(recordings: list[Path], seed: int, n_copies: int) -> list[tuple[str, str]]:
    """Check all copies of one seed, in processes that may hang or crash."""
    found = []
    for first in range(0, n_copies, _COPIES_PER_PROCESS):
        end = min(first + _COPIES_PER_PROCESS, n_copies)
        child = [sys.executable, __file__, "--child", str(seed), str(first), str(end), *map(str, recordings)]
        try:
            answer = subprocess.run(
                child,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
                env=os.environ | {"COLUMNS": "100"},
            )
            lines = [json.loads(line) for line in answer.stdout.splitlines()]
            missing = "traceback" if answer.returncode else "hang"
        except subprocess.TimeoutExpired as error:
            lines = [json.loads(line) for line in (error.stdout or b"").splitlines()]
            missing = "hang"
        found += [(line[0], line[1]) for line in lines]
        if len(lines) < end - first:
            found += [(f"{missing} of the process", f"{first + len(lines)} of seed {seed}")]
            found += [(missing, "not looked at")] * (end - first - len(lines) - 1)
    return found


def main() -> int:
    """Return the number of copies in the classes that must be empty."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copies", type=int, default=2000)
    parser.add_argument("--others", type=int, default=200, help="copies of each group for comparison")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs="+")
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    if asked.child:
        seed, first, end, *recordings = asked.child
        for found in examine([Path(each) for each in recordings], int(seed), int(first), int(end)):
            print(json.dumps(found), flush=True)
        return 0
    n_bad = 0
    with tempfile.TemporaryDirectory() as directory:
        print("| recordings | copies | " + " | ".join(CLASSES) + " |")
        print("| --- " * (len(CLASSES) + 2) + "|")
        for group, recordings in make_recordings(Path(directory)).items():
            n_copies = asked.copies if group == "with checksums" else asked.others
            found = run_apart(recordings, asked.seed, n_copies)
            counts = Counter(each.split()[0] for each, _ in found)
            print(f"| {group} | {n_copies} | " + " | ".join(str(counts[name]) for name in CLASSES) + " |")
            bad = [(each, what) for each, what in found if each.split()[0] in CLASSES[3:]]
            for each, what in bad[:40]:
                print(f"  {each}: {what}", file=sys.stderr)
            if group == "with checksums":
                n_bad = len(bad)
    return n_bad > 0


if __name__ == "__main__":
    sys.exit(main())
