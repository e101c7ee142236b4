"""Alerts: a function and a webhook get each finding, and nothing that they do harms the training."""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vramscope
from vramscope.cli import main
from vramscope.errors import UsageError
from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding, Located
from vramscope.model.rank_summary import DeviceSummary, PeakPlace, RankSummary, StepRows
from vramscope.recorder.notifiers import Notifiers, receiver, webhook
from vramscope.recorder.notifiers.limit import LimitNotifier, Thresholds, thresholds

MIB = 1 << 20
LEAK = Located(Finding("leak", "warning", "memory grows", "/net/a.py", 3, advice="detach it"), 2, 1)
OOM = Located(Finding("oom", "error", "memory ran out"), 2, 1)

TRAINING = """
import sys, torch, vramscope
torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters())
kept, losses, found = [], [], []
net.register_forward_hook(lambda module, given, made: kept.append(made.detach()))
options = dict(on_finding=found.append) if sys.argv[2] == "function" else {}
with vramscope.record(sys.argv[1], device="simulated", quiet=True, **options):
    for _ in range(40):
        loss = net(torch.randn(512, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
print(repr(losses))
"""


class Server:
    """A server on this machine that keeps what is posted to it."""

    def __init__(self, status: int = 200, location: str = "", wait: "threading.Event | None" = None) -> None:
        self.posted: list[dict[str, Any]] = []
        self.came = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # also what a redirect would arrive at
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.posted.append(json.loads(body))
                outer.came.set()
                if wait is not None:
                    wait.wait(60)
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/hook/secret"


@contextmanager
def serving(*arguments: Any, **options: Any) -> Iterator[Server]:
    server = Server(*arguments, **options)
    thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()


def sent(url: str, *found: Located, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of a receiver that delivered *found* to a URL."""
    monkeypatch.setenv("VRAMSCOPE_WEBHOOK", url)
    made = webhook.receiver_of("run")
    assert made is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in found:
            made.put(each)
        made.close()
    return [str(each.message) for each in caught]


def test_one_object_is_sent_for_each_kind_and_says_what_the_report_says(monkeypatch):
    with serving() as server:
        warned = sent(server.url, LEAK, LEAK, OOM, LEAK, monkeypatch=monkeypatch)

    assert warned == []
    assert [each["finding"]["kind"] for each in server.posted] == ["leak", "oom"]
    first = server.posted[0]
    assert set(first) == {"schema", "text", "run", "finding", "left_out"}
    assert first["text"] == "vramscope, run, rank 2: memory grows. Detach it"
    assert first["finding"]["where"] == {"file": "/net/a.py", "line": 3, "function": None}
    assert (first["finding"]["rank"], first["finding"]["device"]) == (2, 1)


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_refuses_is_one_warning_without_the_secret(monkeypatch, status):
    with serving(status) as server:
        warned = sent(server.url, LEAK, OOM, monkeypatch=monkeypatch)

    assert len(warned) == 1
    assert (
        f"the webhook at 127.0.0.1 fails, training goes on: OSError: the server answers {status}" in warned[0]
    )
    assert "secret" not in warned[0]


def test_a_redirect_is_not_followed(monkeypatch):
    with serving() as other, serving(307, other.url) as server:
        warned = sent(server.url, LEAK, monkeypatch=monkeypatch)

        assert (len(server.posted), other.posted) == (1, [])
    assert len(warned) == 1


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/secret", "http://[secret", "secret", "http://"]
)
def test_an_address_of_another_kind_is_one_warning(monkeypatch, url):
    (warned,) = sent(url, LEAK, OOM, monkeypatch=monkeypatch)

    assert "secret" not in warned
    assert "training goes on" in warned


def test_nobody_waits_for_a_receiver_that_never_returns():
    over = threading.Event()
    made = receiver.Receiver("it", lambda _: over.wait(60) and None, longest_end_s=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.put(LEAK)
        made.close()
        over.set()

    (warned,) = caught
    assert "it fails, training goes on: TimeoutError" in str(warned.message)


def test_a_function_that_raises_gets_the_next_finding_too_and_is_one_warning():
    got = []

    def function(found: Finding) -> None:
        got.append(found.kind)
        raise SystemExit("the function's own")

    notifiers = Notifiers()
    notifiers.pass_to(function)
    (made,) = notifiers._receivers.values()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.put(LEAK)
        made.put(OOM)
        made.close()

    assert got == ["leak", "oom"]
    (warned,) = caught
    assert "on_finding fails, training goes on: SystemExit: the function's own" in str(warned.message)


def test_entering_again_and_again_keeps_one_receiver_and_the_last_function():
    notifiers = Notifiers()
    first: list[Finding] = []
    last: list[Finding] = []
    for _ in range(3):
        notifiers.pass_to(first.append)
    notifiers.pass_to(last.append)

    (made,) = notifiers._receivers.values()
    made.put(LEAK)
    made.close()

    assert (first, last) == ([], [LEAK.finding])


def test_what_is_no_function_is_refused(tmp_path):
    with pytest.raises(UsageError, match="on_finding: a function that takes a finding, not str"):
        vramscope.record(tmp_path / "run", on_finding="print")


def test_thresholds_are_read_and_what_is_none_is_refused_in_one_sentence(tmp_path):
    assert thresholds("level=90%, growth=10MiB ,forecast=500") == Thresholds(0.9, None, 10 * MIB, 500)
    assert thresholds("level=70GiB") == Thresholds(level_bytes=70 << 30)
    assert thresholds("") == Thresholds()
    for text in (
        "level",
        "level=0%",
        "level=120%",
        "level=nan%",
        "growth=fast",
        "forecast=-1",
        "peak=1GiB",
        "x",
    ):
        with pytest.raises(UsageError, match="alert_at: "):
            vramscope.record(tmp_path / "run", alert_at=text)


def summary(n_steps: int, bytes_per_step: int, *, total_bytes: int = 4 << 30) -> RankSummary:
    at, peak = np.arange(n_steps), 100 * MIB + bytes_per_step * np.arange(n_steps)
    rows = StepRows.of(
        step=at, n_steps=np.ones(n_steps), start_ns=at * 10**9 + 1, end_ns=at, allocated=peak, reserved=peak
    )
    most = PeakPlace(int(peak[-1]), n_steps - 1, 1)
    device = DeviceSummary(
        Device(0, "simulated", total_bytes=total_bytes),
        steps=rows,
        peak={"allocated": most, "reserved": most},
    )
    return RankSummary(Process(), devices=(device,))


def kinds(notifier: LimitNotifier, *summaries: RankSummary) -> list[list[str]]:
    return [[str(found.finding.kind) for found in notifier.check(each)] for each in summaries]


def test_each_threshold_is_reported_once_when_it_is_reached():
    # 100 MiB and 8 MiB a step on 4 GiB: half of it, 2048 MiB, is reserved in step 244.
    level = LimitNotifier(thresholds("level=50%, forecast=1"))
    growth = LimitNotifier(thresholds("growth=8MiB, forecast=1"))
    faster = LimitNotifier(thresholds("growth=9MiB, forecast=1"))
    runs = [summary(n_steps, 8 * MIB) for n_steps in (200, 244, 245, 300)]

    assert kinds(level, *runs) == [[], [], ["level_reached"], []]
    assert kinds(growth, *runs)[0] == ["peaks_grow"]
    assert kinds(faster, *runs) == [[], [], [], []]
    (found,) = LimitNotifier(thresholds("level=2GiB, forecast=1")).check(runs[-1])
    assert found.finding.n_bytes == 100 * MIB + 299 * 8 * MIB


def test_a_forecast_is_reported_as_soon_as_it_is_near_enough():
    # The limit of 4 GiB is reached near step 499.
    near, any_time = LimitNotifier(thresholds("forecast=100")), LimitNotifier()
    runs = [summary(n_steps, 8 * MIB) for n_steps in (200, 300, 420)]

    assert kinds(any_time, *runs) == [["limit_ahead"], [], []]
    assert kinds(near, *runs) == [[], [], ["limit_ahead"]]


def test_a_level_without_a_known_limit_is_not_judged_by_its_share():
    unknown = replace(
        summary(50, 0), devices=tuple(replace(each, device=Device(0)) for each in summary(50, 0).devices)
    )

    assert kinds(LimitNotifier(thresholds("level=1%")), unknown) == [[]]
    assert kinds(LimitNotifier(thresholds("level=1MiB")), unknown) == [["level_reached"]]


def trained(folder: Path, how: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(TRAINING)
    command = [sys.executable, str(folder / "train.py"), str(folder / how), how]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, check=False, timeout=300
    )


@pytest.mark.slow
def test_a_training_sends_its_leak_and_computes_the_same_with_any_receiver(tmp_path, capsys):
    pytest.importorskip("torch")
    over = threading.Event()
    plain = trained(tmp_path, "plain")
    with serving() as server, serving(wait=over) as silent:
        posted = trained(tmp_path, "posted", VRAMSCOPE_WEBHOOK=server.url)
        hanging = trained(tmp_path, "hanging", VRAMSCOPE_WEBHOOK=silent.url)
        over.set()

    assert [each.returncode for each in (plain, posted, hanging)] == [0, 0, 0]
    assert plain.stdout == posted.stdout == hanging.stdout
    assert hanging.stderr.count("TimeoutError: timed out") == 1
    assert "fails" not in posted.stderr
    (leak,) = (each["finding"] for each in server.posted if each["finding"]["kind"] == "leak")
    assert main(["report", str(tmp_path / "posted"), "--json"]) == 0
    (reported,) = (each for each in json.loads(capsys.readouterr().out)["findings"] if each["kind"] == "leak")
    same = ("rank", "device", "where", "cause", "holder", "bytes_per_step", "advice")
    assert [leak[name] for name in same] == [reported[name] for name in same]
    assert server.posted[0]["run"] == "posted"


def test_a_function_of_the_program_gets_the_finding(tmp_path):
    torch = pytest.importorskip("torch")
    got: list[Finding] = []
    came = threading.Event()
    net, kept = torch.nn.Linear(64, 64), []
    optimizer = torch.optim.SGD(net.parameters())
    net.register_forward_hook(lambda *given: kept.append(given[-1].detach()))
    recorder = vramscope.record(
        tmp_path / "run",
        device="simulated",
        quiet=True,
        on_finding=lambda each: (got.append(each), came.set()),
    )
    with recorder:
        for _ in range(40):
            net(torch.randn(512, 64)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert came.wait(60)
    assert got[0].kind == "leak"
    assert got[0].file == __file__
