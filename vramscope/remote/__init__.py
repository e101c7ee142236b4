"""Runs in object stores: URLs of fsspec, such as ``s3://bucket/runs/gpt2``.

fsspec and its packages for each kind of store are imported when the first URL is opened, never before.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vramscope.errors import MissingExtraError, StoreError, UnknownNameError, UsageError, VramscopeError

_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]+(?:::[^/]+)?://")
_LOCAL = "file://"


def is_url(path: object) -> bool:
    """Return whether *path* is a URL of fsspec, such as ``s3://bucket/run``; a ``Path`` never is."""
    return isinstance(path, str) and _URL.match(path) is not None


def local_path(path: str | Path) -> Path | None:
    """Return the path on this machine, also that of a ``file://`` URL; None for any other URL."""
    if isinstance(path, str) and path.startswith(_LOCAL):
        return Path(path[len(_LOCAL) :])
    return None if is_url(path) else Path(path)


def opened(url: str) -> tuple[Any, str]:
    """Open the store of *url*.

    Credentials and endpoints come from where the store's own package looks for them. Returns the file system
    of fsspec, and the path in it. Raises MissingExtraError if fsspec or the package for S3 is not installed,
    VramscopeError for that of another kind of store, UsageError if no such kind exists.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtraError("fsspec", "remote") from error
    protocol = url.partition("://")[0]
    try:
        files, root = url_to_fs(url)
    except ImportError as error:
        if protocol in ("s3", "s3a"):
            raise MissingExtraError("s3fs", "remote") from error
        raise VramscopeError(f"{url}: {error}") from error
    except ValueError as error:
        raise UsageError(f"{url}: {error}") from error
    return files, root.rstrip("/")


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn what any store raises into one clear error.

    Raises UnknownNameError if there is nothing at *url*, StoreError if the store refuses, or is not reached.
    """
    try:
        yield
    except VramscopeError:
        raise
    except FileNotFoundError as error:
        raise UnknownNameError(
            f"{url}: there is nothing; give the URL of a run or a snapshot file"
        ) from error
    except PermissionError as error:
        raise StoreError(f"{url}: access is refused ({error}); check the credentials") from error
    # Each kind of store raises exceptions of its own, without a base class in common.
    except Exception as error:
        raise StoreError(f"{url}: the store is not reached ({type(error).__name__}: {error})") from error
