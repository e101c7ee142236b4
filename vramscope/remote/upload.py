"""Uploads the trace of one rank from the local directory that it is recorded into, its spool.

Closed parts, the streams of the whole rank, the manifest and the summary go up while it is recorded, and the
part that grows as far as it is written, again and again. The manifest goes last, so that it never names what
the store does not have. ``.upload.json`` in the spool holds what was sent, so another process can go on where
one stopped.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vramscope.conversion_cache import cache_directory
from vramscope.errors import StoreError
from vramscope.remote import opened, store_errors
from vramscope.store import manifest as manifests
from vramscope.store import parts
from vramscope.store.directory import MANIFEST, PREDICTION, is_rank_name
from vramscope.store.manifest import Manifest
from vramscope.store.read import side_file
from vramscope.store.schema import NOTES, POOLS, STACKS, device_of
from vramscope.store.sources import SOURCES_FILE
from vramscope.store.summaries import SUMMARY_FILE
from vramscope.store.write.own_file import replace_file

STATE_FILE = ".upload.json"
_LARGEST_STATE_BYTES = 16 << 20
_PIECE = 8 << 20
"""Files are read and sent in pieces of this size, with a pause after each that keeps the bandwidth bound."""
LARGEST_SPOOLS_BYTES = 8 << 30
"""The size limit of everything in the spools that is uploaded."""
_MOST_NAMES = 1000
# Rows refer to rows of streams further to the left, so those are sent first and looked at last.
_REFERRED_TO = (STACKS, NOTES, POOLS)


@dataclass(frozen=True, slots=True)
class UploadState:
    """The state of an upload, as ``.upload.json`` in the spool holds it."""

    wanted_url: str
    """The URL of the run that the program asked for."""
    url: str = ""
    """The URL of the run that is written to; empty until a free one is found."""
    sent: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Size and time of change of each file that the store has, by its path in the rank's directory."""
    is_whole: bool = False
    """Whether the store has the whole trace."""


def spools() -> Path:
    """Return the directory of all spools: ``$VRAMSCOPE_SPOOL``, else one in the cache directory."""
    given = os.environ.get("VRAMSCOPE_SPOOL")
    if given:
        return Path(os.path.abspath(given))  # noqa: PTH100 -- keeps links
    return (cache_directory() or Path(tempfile.gettempdir()) / f"vramscope-{os.getuid()}") / "spool"


def remove_uploaded(own: Path, *, largest_bytes: int = LARGEST_SPOOLS_BYTES) -> None:
    """Delete the oldest uploaded ranks above the size limit; what no store has always stays.

    The directory *own* of a rank stays as well.
    """
    found = []
    for path in spools().rglob(STATE_FILE):
        state = read_state(path.parent)
        if state is not None and state.is_whole and path.parent != own:
            with suppress(OSError):
                n_bytes = sum(each.stat().st_size for each in path.parent.rglob("*") if each.is_file())
                found.append((path.stat().st_mtime, n_bytes, path.parent))
    total = sum(n_bytes for _, n_bytes, _ in found)
    for _, n_bytes, rank in sorted(found):
        if total <= largest_bytes:
            break
        shutil.rmtree(rank, ignore_errors=True)
        total -= n_bytes


def read_state(rank: Path) -> UploadState | None:
    """Return the state of the upload of a rank; None if it was never meant to be uploaded."""
    try:
        document = side_file.document(rank / STATE_FILE, _LARGEST_STATE_BYTES)
        sent = {str(name): (int(size), int(changed)) for name, (size, changed) in document["sent"].items()}
        state = UploadState(document["wanted_url"], document["url"], sent, document["is_whole"])
        return side_file.checked(state, UploadState)
    except side_file.DAMAGE:
        return None


def write_state(rank: Path, state: UploadState) -> None:
    """Replace the state in one step; raises OSError."""
    replace_file(rank / STATE_FILE, json.dumps(asdict(state)).encode())


class Upload:
    """Sends the files of one rank to a store.

    *rank* is its directory in the spool; *bytes_per_s* bounds the bandwidth, 0 for none.
    """

    def __init__(self, rank: Path, url: str, bytes_per_s: float = 0.0) -> None:
        self._rank = rank
        self._bytes_per_s = bytes_per_s
        known = read_state(rank)
        self._state = known if known is not None and known.wanted_url == url else UploadState(url)
        self._files, _ = opened(url)
        self.growing_bytes = 0
        """The size of the part that grows when it was last looked at."""

    @property
    def url(self) -> str:
        """The URL of the run; one with another number if another run was there already."""
        return self._state.url or self._state.wanted_url

    @property
    def is_whole(self) -> bool:
        """Whether the store has the whole trace."""
        return self._state.is_whole

    def state_of_spool(self) -> tuple[int, int]:
        """What decides whether a call of ``send`` is worth it: the number of parts, and the last summary."""
        with suppress(OSError, StoreError):
            manifest, _ = self._manifest()
            n_homes = len(parts.homes(self._rank, manifest.cap))
            first = 0 if manifest.cap is None else manifest.cap.first_part
            summary = self._rank / SUMMARY_FILE
            return first + n_homes, summary.stat().st_mtime_ns if summary.exists() else 0
        return 0, 0

    def send(self, *, is_final: bool, is_growing_sent: bool = False) -> None:
        """Send what changed since the last call.

        When *is_final* nothing is written any more: everything is sent, and compared with what the store
        lists. *is_growing_sent* sends the part that grows as far as it is written. Raises StoreError if the
        store is not reached, or refuses, or if the spool cannot be read; nothing is lost, and the next call
        goes on.
        """
        with store_errors(self.url):
            manifest, text = self._manifest()
            if not self._state.url:
                self._save(url=self._free_url(manifest))
            if is_final:
                self._forget_lost()
            with_growing = is_final or is_growing_sent
            sent = self._send_files(manifest, with_growing=with_growing)
            while (again := self._manifest())[0].cap != manifest.cap:
                # Parts that this manifest names were replaced by a summary before they were sent.
                manifest, text = again
                sent = self._send_files(manifest, with_growing=with_growing)
            self._pipe(f"{opened(self.url)[1]}/{self._rank.name}/{MANIFEST}", text)
            self._remove_others({*sent, MANIFEST, SUMMARY_FILE, SOURCES_FILE, PREDICTION})
            if is_final:
                self._check(sent)
                self._save(is_whole=True)

    def _manifest(self) -> tuple[Manifest, bytes]:
        path = self._rank / MANIFEST
        text = path.read_bytes()
        written = manifests.parse(text, path)
        ended = manifests.with_named_end(written, path)  # a store has no names of directories
        return ended, text if ended is written else manifests.encoded(ended)

    def _free_url(self, manifest: Manifest) -> str:
        """The requested URL, or the next one with a number that no other run has."""
        wanted = self._state.wanted_url
        for number in range(1, _MOST_NAMES):
            url = wanted if number == 1 else f"{wanted}-{number}"
            if not self._is_taken(url, manifest):
                return url
        raise StoreError(f"{wanted}: {_MOST_NAMES - 1} runs of that name exist already")

    def _is_taken(self, url: str, manifest: Manifest) -> bool:
        root = opened(url)[1]
        try:
            self._files.invalidate_cache()
            found = self._files.ls(root, detail=False)
        except FileNotFoundError:
            return False
        names = sorted(name for path in found if is_rank_name(name := path.rstrip("/").rpartition("/")[2]))
        own = self._rank.name
        there = {
            name: known
            for name in {own, *names[:1]} & set(names)
            if (known := self._remote_manifest(f"{root}/{name}"))
        }
        is_other = own in there and there[own].id != manifest.id
        return is_other or any(
            manifests.is_other_job(known.process.job, manifest.process.job) for known in there.values()
        )

    def _remote_manifest(self, root: str) -> Manifest | None:
        try:
            return manifests.parse(self._files.cat_file(f"{root}/{MANIFEST}"), Path(MANIFEST))
        except FileNotFoundError:
            return None

    def _send_files(self, manifest: Manifest, *, with_growing: bool) -> list[str]:
        """Send all files but the manifest; return the names of those that belong to the trace now."""
        names, growing = self._names(manifest)
        # What refers to other rows is looked at first and sent last: whenever this ends, the store has those.
        names.sort(key=_rank_of_stream, reverse=True)
        found = {name: known for name in names if (known := self._status(name)) is not None}
        self.growing_bytes = sum(found[name][0] for name in growing & found.keys())
        for name, known in reversed(found.items()):
            is_wanted = with_growing or name not in growing
            if is_wanted and self._state.sent.get(name) != known:
                # A part may have been replaced by a summary meanwhile: the next manifest tells.
                with suppress(FileNotFoundError):
                    self._send_file(name, known[0])
                    self._save(sent={**self._state.sent, name: known})
        return names

    def _status(self, name: str) -> tuple[int, int] | None:
        try:
            status = (self._rank / name).stat()
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns

    def _names(self, manifest: Manifest) -> tuple[list[str], set[str]]:
        """Return the files of the trace without the manifest, and those of them in the part that grows."""
        homes = parts.homes(self._rank, manifest.cap)
        found = [name for name in (SUMMARY_FILE, SOURCES_FILE, PREDICTION) if (self._rank / name).exists()]
        growing = set()
        for home in dict.fromkeys([self._rank, *homes]):
            for path in sorted(home.iterdir()):
                is_of_part = parts.is_in_part(path.name)
                if device_of(path.name) is None and path.suffix != ".arrows":
                    continue
                if is_of_part and home not in homes:
                    continue  # replaced by a summary
                name = parts.file_of(home, self._rank, path.name)
                found.append(name)
                if is_of_part and home == homes[-1]:
                    growing.add(name)
        return found, growing

    def _send_file(self, name: str, n_bytes: int) -> None:
        target = f"{opened(self.url)[1]}/{self._rank.name}/{name}"
        with (self._rank / name).open("rb") as file:
            if n_bytes <= _PIECE:
                self._paced(lambda: self._pipe(target, file.read(n_bytes)), n_bytes)
                return
            out = self._files.open(target, "wb", block_size=_PIECE)
            try:
                for first in range(0, n_bytes, _PIECE):
                    piece = file.read(min(_PIECE, n_bytes - first))
                    self._paced(lambda piece=piece: out.write(piece), len(piece))
            except BaseException:
                # Closing it would store half a file.
                with suppress(Exception):
                    out.discard()
                raise
            out.close()

    def _pipe(self, target: str, data: bytes) -> None:
        if getattr(self._files, "protocol", "") in ("file", ("file", "local")):
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(target, data)

    def _paced(self, send: Any, n_bytes: int) -> None:
        began = time.monotonic()
        send()
        if self._bytes_per_s:
            time.sleep(max(n_bytes / self._bytes_per_s - (time.monotonic() - began), 0.0))

    def _listed(self) -> dict[str, int]:
        root = f"{opened(self.url)[1]}/{self._rank.name}"
        self._files.invalidate_cache()
        try:
            found = self._files.find(root, detail=True)
        except FileNotFoundError:
            return {}
        return {name[len(root) :].lstrip("/"): int(about.get("size") or 0) for name, about in found.items()}

    def _forget_lost(self) -> None:
        """Forget what was sent and is not in the store any more, or not as it was sent."""
        listed = self._listed()
        kept = {name: known for name, known in self._state.sent.items() if listed.get(name) == known[0]}
        if len(kept) < len(self._state.sent):
            self._save(sent=kept)

    def _check(self, names: list[str]) -> None:
        listed = self._listed()
        wrong = [name for name in names if listed.get(name) != (self._rank / name).stat().st_size]
        if wrong:
            raise StoreError(f"{self.url}: the store does not list what was sent ({wrong[0]})")

    def _remove_others(self, names: set[str]) -> None:
        """Remove the parts that a summary replaced, as in the spool; readers ignore them if that fails."""
        gone = self._state.sent.keys() - names
        for name in gone:
            # A store may allow writing and no deleting.
            with suppress(Exception):
                self._files.rm_file(f"{opened(self.url)[1]}/{self._rank.name}/{name}")
        if gone:
            self._save(sent={name: known for name, known in self._state.sent.items() if name in names})

    def _save(self, **changed: Any) -> None:
        self._state = replace(self._state, **({"is_whole": False} | changed))
        with suppress(OSError):  # on a full disk this process alone knows it
            write_state(self._rank, self._state)


def _rank_of_stream(name: str) -> int:
    """Return the place of a file in the order in which rows refer to others; the last ones refer to all."""
    stream = Path(name).name.partition(".")[0].partition("-")[0]
    return _REFERRED_TO.index(stream) if stream in _REFERRED_TO else len(_REFERRED_TO)
