"""The token of this user, kept in a file: a page that is open stays valid when the server starts again."""

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

_FORM = re.compile(r"[A-Za-z0-9_-]{32}", re.ASCII)
_LARGEST_BYTES = 64


def kept_token() -> str:
    """Return the same token after a restart; a new one where no file of this user can keep it.

    The file is ``$XDG_STATE_HOME/vramscope/token`` (``~/.local/state/vramscope/token``). Only this user may
    read it: one that anybody else owns or may read is not used, because its token may be known.
    """
    home = state_directory()
    if home is None:
        return secrets.token_urlsafe(24)
    path = home / "token"
    known = _read(path)
    if known:
        return known
    with suppress(OSError):
        _write(path, secrets.token_urlsafe(24))
    return _read(path) or secrets.token_urlsafe(24)


def state_directory() -> Path | None:
    """Return ``$XDG_STATE_HOME/vramscope``, which need not exist; None where this user has no home."""
    given = os.environ.get("XDG_STATE_HOME", "")
    try:
        # The standard says that a relative path is to be ignored.
        home = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:  # no home directory
        return None
    return home / "vramscope"


def _read(path: Path) -> str:
    """Return the token in the file; '' where there is none, or where others may know it."""
    try:
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return ""
    with os.fdopen(opened, "rb") as file:
        is_private = _is_private(os.fstat(file.fileno()))
        text = file.read(_LARGEST_BYTES).decode("ascii", "replace").strip()
    return text if is_private and _FORM.fullmatch(text) else ""


def _is_private(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    # Windows has neither: a file in the user's profile is the user's there.
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o077)


def _write(path: Path, token: str) -> None:
    """Create the file, or replace one that cannot be used; of two servers that start at once, one writes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = path.with_name(f"token.{os.getpid()}.{secrets.token_hex(4)}")
    opened = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "w") as file:
        file.write(token)
    try:
        if path.exists() or path.is_symlink():
            own.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(own, path)
    finally:
        own.unlink(missing_ok=True)
