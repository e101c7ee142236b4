"""Runs of one program compare equal; what one line takes more is named, and check notices."""

import gc
import json

import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope import cli  # noqa: E402
from vramscope.analysis.compare import compare  # noqa: E402

nn = torch.nn


def trained(path, extra: int = 0, model=None, n_rows: int = 16):
    """A small transformer on the simulated device; *extra* bytes more at one line of each step."""
    torch.manual_seed(0)
    model = model or nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            loss = model(torch.randn(n_rows, 32, 64)).square().mean()
            mask = torch.zeros(4096 + extra, dtype=torch.uint8)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    del mask
    return vramscope.load(path).recordings[0]


LINE = trained.__code__.co_firstlineno + 9


def test_markdown_for_a_pull_request_has_what_the_terminal_shows(tmp_path, capsys):
    trained(tmp_path / "a")
    trained(tmp_path / "b", extra=1 << 20)
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    cli.main(["diff", *paths])
    shown = capsys.readouterr().out
    code = cli.main(["diff", *paths, "--markdown"])
    text = capsys.readouterr().out

    assert code == 0
    assert text.startswith("# ")
    assert "| --- |" in text or "---: |" in text
    assert "1.00 MiB" in shown
    assert "1.00 MiB" in text


def test_what_differs_in_kind_is_said_before_any_line(tmp_path, capsys):
    """Twice the batch: that is what the reader asks first, and no line is the cause."""
    for name, n_rows in (("a", 16), ("b", 32)):
        trained(tmp_path / name, model=nn.Sequential(nn.Linear(64, 64), nn.ReLU()), n_rows=n_rows)
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    words = "batch × 2 (inputs 16 × 32 × 64 → 32 × 32 × 64)"

    cli.main(["diff", *paths])
    shown = capsys.readouterr().out.splitlines()
    cli.main(["diff", *paths, "--json"])
    (said,) = json.loads(capsys.readouterr().out)["comparisons"]

    assert [line for line in shown if line][1] == f"in kind: {words}"
    assert said["in_kind"] == [words]


def test_eight_runs_of_one_program_differ_in_nothing(tmp_path):
    def model():
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    first, *others = [trained(tmp_path / str(number), model=model()) for number in range(8)]

    assert [compare(first, other).changes for other in others] == [()] * 7


def test_what_one_line_takes_more_is_named_with_its_bytes(tmp_path, capsys):
    before = trained(tmp_path / "a")
    extra = before.peak().allocated.n_bytes // 20 // 512 * 512
    after = trained(tmp_path / "b", extra)

    (line,) = compare(before, after).of("line")

    # The mask of a step lives until the next one is made: at that moment there are two of it.
    assert line.place is not None
    assert (line.place.file, line.place.line, line.n_bytes) == (__file__, LINE, 2 * extra)
    assert cli.main(["check", str(tmp_path / "b"), "--against", str(tmp_path / "a")]) == 3
    assert f"test_diff_of_runs.py:{LINE}" in capsys.readouterr().out
    assert cli.main(["check", str(tmp_path / "a"), "--against", str(tmp_path / "a")]) == 0
