"""Nobody gets in without the token, under a foreign name or from another site; the page reaches nobody."""

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access, access

from vramscope.errors import UsageError

BASE = "http://127.0.0.1:8050"


@pytest.fixture
def client(app: Any) -> Any:
    return app.server.test_client()


@pytest.fixture
def inside(client: Any) -> Any:
    client.get("/?token=secret-token", base_url=BASE)
    return client


def test_without_the_token_nothing_is_served(client: Any) -> None:
    for path in ("/", "/_dash-layout", "/_dash-dependencies", "/assets/style.css", "/overview?run=gpt"):
        assert client.get(path, base_url=BASE).status_code == 401


def test_a_wrong_token_is_refused(client: Any) -> None:
    assert client.get("/?token=wrong", base_url=BASE).status_code == 401
    assert client.get("/?token=geheim-\u00fc", base_url=BASE).status_code == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(client: Any) -> None:
    answer = client.get("/overview?run=gpt-1&token=secret-token", base_url=BASE)
    cookie = answer.headers["Set-Cookie"]

    assert answer.status_code == 302
    assert answer.headers["Location"] == "/overview?run=gpt-1"
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert client.get("/", base_url=BASE).status_code == 200


def test_the_exchange_never_leads_to_another_site(client: Any) -> None:
    for path in ("//evil.example/?token=secret-token", "/\\evil.example/?token=secret-token"):
        location = client.get(path, base_url=BASE).headers.get("Location", "/")
        assert not re.match(r"^(//|/\\|https?:)", location)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "gpu01:8050", "", "[::1", "localhost.evil"]
)
def test_a_foreign_host_name_is_refused(inside: Any, host: str) -> None:
    assert inside.get("/", headers={"Host": host}, base_url=BASE).status_code in {400, 403}


@pytest.mark.parametrize("base", ["http://localhost:8050", "http://127.0.0.1:8050", "http://[::1]:8050"])
def test_every_name_of_this_machine_is_answered(client: Any, base: str) -> None:
    assert client.get("/?token=secret-token", base_url=base).status_code == 302


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://["},
        {"Origin": "http://[::1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(inside: Any, headers: dict[str, str]) -> None:
    assert inside.post("/_dash-update-component", headers=headers, base_url=BASE).status_code == 403
    assert inside.get("/_dash-layout", headers=headers, base_url=BASE).status_code == 403


def test_a_link_from_elsewhere_may_be_followed(inside: Any) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}

    assert inside.get("/", headers=headers, base_url=BASE).status_code == 200


def test_the_policy_allows_no_inline_script_and_no_other_server(inside: Any) -> None:
    headers = inside.get("/", base_url=BASE).headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))

    assert "unsafe" not in policy["script-src"]
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not re.search(r"https?:|\*", headers["Content-Security-Policy"])
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_policy_covers_the_page_as_served(inside: Any) -> None:
    answer = inside.get("/", base_url=BASE)
    inline = re.findall(r"<script(?![^>]*\bsrc=)([^>]*)>(.*?)</script>", answer.text, re.DOTALL)
    run = [text for kind, text in inline if "application/json" not in kind]
    digests = [b64encode(sha256(text.encode()).digest()).decode() for text in run]

    assert len(run) == 2, "ours, and that of Dash's renderer"
    assert all(f"'sha256-{each}'" in answer.headers["Content-Security-Policy"] for each in digests)
    assert not re.search(r'(?:src|href)="(?:https?:)?//', answer.text)


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2f..%2fpyproject.toml", "/../etc/passwd"],
)
def test_no_path_leads_out_of_the_assets(inside: Any, path: str) -> None:
    answer = inside.get(path, base_url=BASE)

    assert answer.status_code == 404 or "_dash-renderer" in answer.text


def test_large_bodies_are_refused(inside: Any) -> None:
    assert (
        inside.post("/_dash-update-component", json={"x": "x" * (2 << 20)}, base_url=BASE).status_code == 413
    )


def test_another_address_than_this_machine_needs_names_and_a_token() -> None:
    with pytest.raises(UsageError, match="--no-token"):
        access("0.0.0.0", ["gpu01"], use_token=False)
    with pytest.raises(UsageError, match="--allow-host"):
        access("0.0.0.0")
    allowed = access("0.0.0.0", ["gpu01.example.org"])

    assert allowed.token
    assert "gpu01.example.org" in allowed.hosts


def test_this_machine_may_go_without_a_token(data: Data) -> None:
    client = build_app(data, access("127.0.0.1", use_token=False)).server.test_client()

    assert client.get("/", base_url=BASE).status_code == 200


def test_a_notebook_may_show_the_page_in_a_frame_only_if_asked(data: Data) -> None:
    client = build_app(data, Access(None, embed=True)).server.test_client()
    policy = client.get("/", base_url=BASE).headers["Content-Security-Policy"]

    assert "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*" in policy


@pytest.mark.parametrize(
    "path",
    [
        "/%09/evil.example",
        "/%5cevil.example",
        "/%0a%0d//evil.example",
        "/x/..//evil.example",
        "/%2f%2fevil.example",
        "/%20/evil.example",
        "//evil.example",
        "/" + "a" * 5000 + "!",
        "/%e3%80%82/evil",
    ],
)
def test_the_exchange_leads_to_words_between_single_slashes(client: Any, path: str) -> None:
    answer = client.get(f"{path}?token=secret-token", base_url=BASE)

    assert re.fullmatch(r"/[\w.-]*", answer.headers["Location"], re.ASCII)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:99999999", "127.0.0.1:-1", "localhost:x", "a@127.0.0.1", "127.0.0.1 x"]
)
def test_a_host_that_is_none_is_refused_in_one_line(client: Any, host: str) -> None:
    answer = client.get("/", headers={"Host": host}, base_url=BASE)

    assert answer.status_code in {400, 403}
    assert b"Traceback" not in answer.data


def test_a_refusal_is_one_line(client: Any) -> None:
    answer = client.get("/", headers={"Origin": "http://["}, base_url=BASE)

    assert (answer.status_code, answer.data.count(b"\n")) == (403, 1)
