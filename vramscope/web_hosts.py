"""Names under which a server of ours answers: another site's page must not read it (DNS rebinding)."""

import re
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches *host*."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_any(host: str) -> bool:
    """Return whether a server that binds *host* answers on every interface."""
    return host.strip("[]") in {"", "0.0.0.0", "::"}  # noqa: S104 -- compared, not bound


def host_name(netloc: str) -> str:
    """Return the host of ``host:port`` in lower case; '' for any other text."""
    try:
        parts = urlsplit(f"//{netloc}")
        is_whole = re.fullmatch(r"[\w.:%\[\]-]+", netloc, re.ASCII) and parts.port != 0
        return (parts.hostname or "").lower() if is_whole else ""
    except ValueError:
        return ""


def is_of_another_site(origin: str | None, host: str) -> bool:
    """Return whether the header ``Origin`` of a request names another server than the one it was sent to."""
    try:
        return origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:  # such as http://[
        return True


def is_own_address(name: str, bound: str) -> bool:
    """Return whether a server that is bound to *bound* may be called by *name*, which nobody allowed.

    An address in digits is no name that another site's DNS can point here.
    """
    if is_loopback(bound):
        return name in LOOPBACK
    own = {bound.lower().strip("[]"), "localhost", socket.gethostname().lower()}
    try:
        return name in own or bool(ip_address(name))
    except ValueError:
        return False
