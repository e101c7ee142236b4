"""Export of what was allocated at the peak as a profile for pprof (https://github.com/google/pprof).

The form is a gzipped protocol buffer, https://github.com/google/pprof/blob/main/proto/profile.proto, which
``go tool pprof``, Grafana Pyroscope and others read. The message is written here: it has few fields, and no
package for Python carries its protos.
"""

import gzip
from collections.abc import Iterable
from pathlib import Path

from vramscope.export import Export
from vramscope.export.live_stacks import live_stacks, title
from vramscope.model.recording import Run
from vramscope.model.stacks import Frame

# Fields of profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRINGS, _TIME_NS, _COMMENT = 1, 2, 4, 5, 6, 9, 13


def write(run: Run, path: Path) -> list[Path]:
    """Write one gzipped profile with the bytes of each stack, outermost the rank and the device."""
    profile = _Profile()
    for recording in run.recordings:
        first = (Frame(title(recording), "", 0),) if len(run.recordings) > 1 else ()
        for stack, n_bytes in live_stacks(recording):
            profile.add((*first, *stack), n_bytes)
    path.write_bytes(gzip.compress(profile.message(run.started_ns), mtime=0))
    return [path]


class _Profile:
    """The samples, and the tables that they refer to."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[Frame, int] = {}
        self._samples: list[bytes] = []

    def add(self, stack: tuple[Frame, ...], n_bytes: int) -> None:
        locations = [self._location(frame) for frame in reversed(stack)]
        self._samples.append(_packed(1, locations) + _packed(2, [n_bytes]))

    def message(self, started_ns: int) -> bytes:
        value_type = _varint(1, self._text("allocated_at_peak")) + _varint(2, self._text("bytes"))
        comment = self._text("vramscope: allocated bytes at the peak of allocated bytes")
        parts = [_bytes(_SAMPLE_TYPE, value_type)]
        parts += [_bytes(_SAMPLE, sample) for sample in self._samples]
        parts += [_bytes(_LOCATION, self._location_message(*each)) for each in self._locations.items()]
        parts += [
            _bytes(
                _FUNCTION, _varint(1, number) + _varint(2, self._text(name)) + _varint(4, self._text(file))
            )
            for (name, file), number in self._functions.items()
        ]
        parts += [_bytes(_STRINGS, text.encode("utf-8", "replace")) for text in self._strings]
        return b"".join([*parts, _varint(_TIME_NS, started_ns), _varint(_COMMENT, comment)])

    def _location(self, frame: Frame) -> int:
        function = (frame.function, frame.file)
        self._functions.setdefault(function, len(self._functions) + 1)
        for text in function:
            self._text(text)
        return self._locations.setdefault(frame, len(self._locations) + 1)

    def _location_message(self, frame: Frame, number: int) -> bytes:
        line = _varint(1, self._functions[frame.function, frame.file]) + _varint(2, max(frame.line, 0))
        return _varint(1, number) + _bytes(4, line)

    def _text(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))


def _number(value: int) -> bytes:
    """The variable-length form of a number: seven bits per byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _bytes(field, b"".join(map(_number, values)))


EXPORT = Export("pprof", "what was allocated at the peak, by call stack, for pprof", write)
