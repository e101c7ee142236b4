"""Access to the dashboard and limits of its pages: Host, origin and token checks, headers.

A recording names files and code of its owner. On a shared machine every user reaches 127.0.0.1, and any web
page can direct its scripts there (DNS rebinding). Therefore a token is required unless switched off by name,
only known host names are answered, cross-site requests are refused, and a policy keeps pages from contacting
other hosts.
"""

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

from flask import Flask, Response, abort, redirect, request

from vramscope.errors import UsageError
from vramscope.web_hosts import LOOPBACK, host_name, is_any, is_loopback, is_of_another_site

MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Access:
    """Conditions under which a request is answered."""

    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Secret of the URL; None lets everybody in who reaches the port."""
    hosts: frozenset[str] = LOOPBACK
    """Host names under which the server answers, without port."""
    embed: bool = False
    """Whether a notebook on this machine may show the dashboard in a frame."""


def access(
    host: str, allowed_hosts: Iterable[str] = (), *, use_token: bool = True, token: str | None = None
) -> Access:
    """Return the access for a server bound to *host*.

    Browsers may reach it under *allowed_hosts* too. Raises UsageError where recordings would be exposed to
    other machines.
    """
    named = frozenset(name.lower().strip("[]") for name in allowed_hosts)
    if is_loopback(host):
        return _with_token(token, LOOPBACK | named) if use_token else Access(None, LOOPBACK | named)
    if not use_token:
        raise UsageError(f"--no-token works on this machine only, not with --host {host}")
    own = frozenset() if is_any(host) else frozenset({host.lower().strip("[]")})
    if not named | own:
        raise UsageError(
            f"--host {host} answers on every interface: name the host you will open, "
            "for example --allow-host gpu01.example.org"
        )
    return _with_token(token, LOOPBACK | named | own)


def _with_token(token: str | None, hosts: frozenset[str]) -> Access:
    return Access(hosts=hosts) if token is None else Access(token, hosts)


def protect(server: Flask, allowed: Access, script_hashes: Iterable[str]) -> None:
    """Add the checks before every request of *server*, and the headers to every response.

    The policy admits inline scripts with *script_hashes*.
    """
    quoted = ("'" + digest.strip("'") + "'" for digest in script_hashes)
    headers = _headers(" ".join(quoted), allowed.embed)
    server.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @server.before_request
    def check() -> Response | None:
        if host_name(request.host) not in allowed.hosts:
            _refuse(403, "This dashboard does not answer under that host name; see --allow-host.")
        _check_origin()
        return _check_token(allowed.token)

    @server.after_request
    def seal(response: Response) -> Response:
        response.headers.update(headers)
        return response


def _refuse(status: int, why: str) -> NoReturn:
    abort(Response(f"{why}\n", status, mimetype="text/plain"))


def _check_origin() -> None:
    if is_of_another_site(request.headers.get("Origin"), request.host):
        _refuse(403, "Requests from other sites are refused.")
    navigation = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method == "GET"
    if request.headers.get("Sec-Fetch-Site") in {"cross-site", "same-site"} and not navigation:
        _refuse(403, "Requests from other sites are refused.")


def cookie_name() -> str:
    """Return the cookie's name, which contains the port: all ports of a host share their cookies."""
    port = urlsplit(f"//{request.host}").port or 80
    return f"vramscope-{port}"


def _check_token(token: str | None) -> Response | None:
    if token is None:
        return None
    offered = request.args.get("token")
    if offered is not None and request.method == "GET" and _same(offered, token):
        # Move the token from the address bar into a cookie that scripts cannot read.
        rest = urlencode([(k, v) for k, v in request.args.items(multi=True) if k != "token"])
        # Two slashes name another site, and browsers read a backslash as a slash and leave tabs out.
        path = request.path if re.fullmatch(r"(?:/[\w.-]+)*/?", request.path, re.ASCII) else "/"
        answer = redirect(f"{path}?{rest}" if rest else path)
        answer.set_cookie(cookie_name(), token, httponly=True, samesite="Strict", path="/")
        return answer  # type: ignore[return-value]
    if not _same(request.cookies.get(cookie_name(), ""), token):
        _refuse(401, "Open the URL that `vramscope serve` printed: it carries the token.")
    return None


def _same(offered: str, token: str) -> bool:
    return hmac.compare_digest(offered.encode(), token.encode())


def _headers(script_hashes: str, embed: bool) -> dict[str, str]:
    ancestors = "'self' http://localhost:* http://127.0.0.1:*" if embed else "'none'"
    policy = (
        "default-src 'none'",
        f"script-src 'self' {script_hashes}".rstrip(),
        "style-src 'self' 'unsafe-inline'",  # Plotly and the table place their marks by style attributes
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        f"frame-ancestors {ancestors}",
    )
    sealed = {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    return sealed if embed else sealed | {"X-Frame-Options": "DENY"}
