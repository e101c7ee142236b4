"""Sends findings to the URL in ``VRAMSCOPE_WEBHOOK``: one JSON object for each kind, ten minutes apart.

It says what ``report --json`` says of a finding, and no more of the program. Redirects are not followed, and
warnings have the host alone: the rest of such a URL is often a secret.
"""

import json
import os
from time import monotonic
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from vramscope.analysis.findings import finding_as_json
from vramscope.model.finding import Located
from vramscope.recorder.configured import WEBHOOK
from vramscope.recorder.notifiers.receiver import Receiver
from vramscope.units import as_sentence

_TIMEOUT_S = 3.0
_AGAIN_S = 600.0
"""The least time between two messages about findings of one kind."""


def receiver_of(run: str) -> Receiver | None:
    """Return what sends the findings of a run of that name; None where no URL is given."""
    url = os.environ.get(WEBHOOK, "").strip()
    return Receiver(f"the webhook at {_host(url)}", _Webhook(url, run).send) if url else None


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "no host"
    except ValueError:
        return "no host"


class _Webhook:
    """A URL, and when each kind of finding was sent to it."""

    def __init__(self, url: str, run: str) -> None:
        self._url = url
        self._run = run
        self._sent_s: dict[str, float] = {}
        self._n_left_out: dict[str, int] = {}

    def send(self, found: Located) -> None:
        """Send a finding, unless its kind was sent lately; raises OSError or ValueError where that fails."""
        kind = str(found.finding.kind)
        if monotonic() - self._sent_s.get(kind, float("-inf")) < _AGAIN_S:
            self._n_left_out[kind] = self._n_left_out.get(kind, 0) + 1
            return
        self._sent_s[kind] = monotonic()
        _post(self._url, payload(self._run, found, self._n_left_out.pop(kind, 0)))


def payload(run: str, found: Located, n_left_out: int = 0) -> dict[str, Any]:
    """Return the object that is sent; chat services show its ``text``."""
    advice = f" {as_sentence(found.finding.advice)}" if found.finding.advice else ""
    return {
        "schema": 1,
        "text": f"vramscope, {run}, rank {found.rank}: {found.finding.claim}.{advice}",
        "run": run,
        "finding": {**finding_as_json(found), "evidence": {}},
        "left_out": n_left_out,
    }


class _NoRedirect(HTTPRedirectHandler):
    """A redirect is an error: what was meant for one host goes to no other."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request."""


def _post(url: str, message: dict[str, Any]) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{WEBHOOK} is no address of http or https")
    data = json.dumps(message).encode()
    request = Request(url, data, {"Content-Type": "application/json", "User-Agent": "vramscope"})  # noqa: S310
    try:
        # The answer is not read: its status is all that matters.
        build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S).close()
    except HTTPError as error:
        error.close()
        raise OSError(f"the server answers {error.code}") from None
    except (URLError, ValueError) as error:
        # Their texts may quote the URL.
        raise OSError(str(error).replace(url, "the URL")) from None
