"""``vramscope serve`` says its one URL, and what is wrong otherwise."""

import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from vramscope.dashboard import command, report, serve
from vramscope.dashboard.data import Data
from vramscope.dashboard.server.security import Access

from vramscope.errors import MissingExtraError, UsageError
from vramscope.model.recording import Recording, Run


def parsed(*words: str) -> Any:
    parser = ArgumentParser()
    command.COMMAND.arguments(parser)
    return parser.parse_args(words)


def test_a_missing_package_is_one_line_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "dash" else object())

    with pytest.raises(MissingExtraError, match=r'pip install "vramscope\[dashboard\]"'):
        command.COMMAND.run(parsed(str(tmp_path)))


def test_the_page_as_a_file_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "plotly" else object())

    with pytest.raises(MissingExtraError, match=r'plotly.*pip install "vramscope\[dashboard\]"'):
        report.EXPORT.write(Run("r", "r", (Recording(),)), tmp_path / "out.html")


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder or file does not exist"):
        command.COMMAND.run(parsed(str(tmp_path / "nowhere")))


def test_the_command_loads_no_dash_to_be_listed() -> None:
    heavy = {"dash", "plotly", "numpy", "pyarrow"}
    code = f"import sys, vramscope.dashboard.command; sys.exit(bool({heavy} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_page_as_a_file_loads_no_dash_to_be_listed() -> None:
    heavy = {"dash", "plotly", "pandas"}
    code = f"import sys, vramscope.dashboard.report; sys.exit(bool({heavy} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path, started: Any) -> None:
    words = [sys.executable, "-m", "vramscope", "serve", str(tmp_path), "--port", "0"]
    with started(words, stderr=subprocess.PIPE) as process:
        url = next(line.strip() for line in process.stdout if "token=" in line)
        opener = build_opener(HTTPCookieProcessor())
        with opener.open(url, timeout=120) as answer:
            page = answer.read().decode()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)

    assert "vramscope" in page
    assert (process.returncode, errors) == (0, "")


SERVES = """
import gc, resource, sys
from vramscope.cli import main
from vramscope.dashboard.server.connections import Server

def run(server):
    print("found", len(gc.get_objects()), gc.get_freeze_count(), *resource.getrlimit(resource.RLIMIT_NOFILE))

Server.run = run
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
main(["serve", sys.argv[1], "--port", "0"])
"""


def test_the_server_may_open_files_and_collections_leave_out_what_it_is_made_of(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SERVES, str(tmp_path)]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    n_found, n_left_out, allowed, most = map(int, output.rpartition("found")[2].split())

    assert 20 * n_found < n_left_out > 50_000
    assert allowed == (most if 0 <= most < 1 << 14 else 1 << 14)


def test_the_url_carries_the_token() -> None:
    assert command._url(8050, Access("t0ken")) == "http://127.0.0.1:8050/?token=t0ken"
    assert command._url(1, Access(None)) == "http://127.0.0.1:1/"
    assert command._url(1, Access("t"), "overview?run=x") == "http://127.0.0.1:1/overview?run=x&token=t"


def test_one_run_opens_on_its_overview_and_a_folder_on_its_list() -> None:
    samples = Path(__file__).parents[3] / "sample_traces"
    page = command._first_page(samples / "transformer")

    assert command._first_page(samples) == ""
    runs = Data(samples / "transformer").runs
    assert runs.path(page.removeprefix("overview?run=")) == samples / "transformer"


def test_a_port_in_use_is_reported_and_the_usual_one_is_replaced(tmp_path: Path) -> None:
    first = serve(tmp_path, Access(None))
    try:
        with pytest.raises(UsageError, match="cannot be bound"):
            command._bound(parsed(str(tmp_path), "--port", str(first.effective_port)), Access(None))
    finally:
        first.close()
