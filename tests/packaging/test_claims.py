"""What README and the documents say in numbers is what the code has: more than forty claims.

A claim is a passage of a document, in which groups stand for what is claimed, and where the truth is computed
from. Whatever stands in the document otherwise, or is changed in the code, is not equal any more.
"""

import ast
import inspect
import re
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomllib

import vramscope
from vramscope import commands, registry
from vramscope.allocator.settings import GRANULE
from vramscope.cli import main
from vramscope.commands import Command
from vramscope.model.cards import CARDS, OWNED
from vramscope.model.recording import Recording

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
MIB, GIB = 1 << 20, 1 << 30
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
Truth = Callable[[], tuple[object, ...]]


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def value(path: str, name: str) -> Any:
    """A constant of a module that need not be imported: an expression of numbers."""
    for node in ast.parse(text(f"vramscope/{path}")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return eval(compile(ast.Expression(node.value), path, "eval"), {"__builtins__": {}})
    raise LookupError(f"{path} has no {name}")


def default(command: str, option: str) -> Any:
    """The default of an option of a command."""
    parser = ArgumentParser()
    registry.parts(commands, Command, refused=lambda *_: None)[command].arguments(parser)
    return parser.get_default(option)


def parameter(name: str) -> Any:
    return inspect.signature(vramscope.record).parameters[name].default


@cache
def sample(name: str) -> Recording:
    return vramscope.load(SAMPLES / name).recordings[0]


def code_of(*words: str) -> int:
    try:
        return main(list(words))
    except SystemExit as ended:
        return int(ended.code or 0)


def lowest(extra: str) -> str:
    """The oldest version of the package of an extra."""
    return PROJECT["optional-dependencies"][extra][0].rpartition(">=")[2]


def gib(name: str) -> str:
    return f"{next(card.total_bytes for card in (*CARDS, *OWNED) if card.name == name) / GIB:.1f}"


def leak() -> Any:
    return sample("gan-retain-graph").leaks().leaks[0]


def words_of_gpt() -> str:
    return f"{ast.literal_eval(re.search(r'VOCABULARY, .* = ([0-9_]+),', text('sample_traces/gpt.py'))[1]):,}"


PACE, WATCH = "capture/cuda/reading_pace.py", "capture/holders/growth_watch.py"
CLAIMS: list[tuple[str, str, Truth]] = [
    ("README.md", r"Version ([\d.]+) is not on", lambda: (vramscope.__version__,)),
    ("README.md", r"need Python (\S+) or newer", lambda: (PROJECT["requires-python"][2:],)),
    ("README.md", r"recording needs PyTorch ([\d.]+)\.", lambda: (lowest("torch"),)),
    (
        "README.md",
        r"vramscope (\w+) installs torch",
        lambda: ("sometimes" if "torch" in str(PROJECT["dependencies"]) else "never",),
    ),
    ("README.md", r"Lines (\d+) to (\d+) of", lambda: (min(lines_of_leak()), max(lines_of_leak()))),
    ("README.md", r"the mistake is in line (\d+)", lambda: (leak().kept_at.line,)),
    (
        "README.md",
        r"For CI: exit code (\d)",
        lambda: (code_of("check", str(SAMPLES / "transformer"), "--max-peak", "1MiB"),),
    ),
    ("docs/start.md", r"needs Python (\S+) or newer", lambda: (PROJECT["requires-python"][2:],)),
    ("docs/start.md", r"vramscope serve traces/ --port (\d+)`", lambda: (default_port(),)),
    ("docs/commands.md", r"\| (\d) \| fine", lambda: (code_of("--version"),)),
    ("docs/commands.md", r"\| (\d) \| failed", lambda: (code_of("report", str(ROOT / "LICENSE")),)),
    ("docs/commands.md", r"\| (\d) \| a usage error", lambda: (code_of("report", "--nothing"),)),
    ("docs/commands.md", r"`--top N` shows N rows \((\d+)\)", lambda: (default("report", "top"),)),
    (
        "docs/commands.md",
        r"`--wait` \((\d+) s\)",
        lambda: (f"{value('commands/_attached_process.py', 'WAIT_S'):.0f}",),
    ),
    (
        "docs/commands.md",
        r"`--tolerance` \((0\.1) % of A's peak\)",
        lambda: (f"{100 * inspect.signature(Recording.compare).parameters['tolerance'].default:.1f}",),
    ),
    ("docs/prediction.md", r"the card to predict for \(`(\w+)`\)", lambda: (default("predict", "card"),)),
    (
        "docs/prediction.md",
        r"stop after so many optimizer steps \((\d)\)",
        lambda: (default("predict", "steps"),),
    ),
    (
        "docs/prediction.md",
        r"no\s+optimizer of torch, after (\d+) backward passes",
        lambda: (value("prediction/dry/dry_capture.py", "_PASSES_WITHOUT_OPTIMIZER"),),
    ),
    (
        "docs/prediction.md",
        r"\((\d) % and (\d+) MiB; (\d+) % between cards before and after Ampere\)",
        lambda: (
            f"{100 * value('prediction/cards.py', '_ALIKE'):.0f}",
            value("prediction/cards.py", "_LIBRARIES_BYTES") // MIB,
            f"{100 * value('prediction/cards.py', '_OLDER'):.0f}",
        ),
    ),
    (
        "docs/prediction.md",
        r"Its range is (\d) %\s+and (\d) GiB wide",
        lambda: (
            f"{100 * value('prediction/dry/dry_capture.py', '_OFF_OF_RANKS'):.0f}",
            value("prediction/dry/dry_capture.py", "_NCCL_BYTES") // GIB,
        ),
    ),
    (
        "docs/prediction.md",
        r"up to ([\d,]+) elements \(tokens, masks, lengths, counters\)",
        lambda: (f"{value('prediction/dry/values/known.py', '_LARGEST'):,}",),
    ),
    (
        "docs/prediction.md",
        r"sorted indices and partial sums of more than ([\d,]+) rows",
        lambda: (f"{value('prediction/dry/operators/embedding.py', '_FEW'):,}",),
    ),
    (
        "docs/prediction.md",
        r"\| (2\.13\.0, [\d., ]+\d) \| `checked`",
        lambda: (", ".join(checked_torches()),),
    ),
    ("docs/prediction.md", r"\| 10 GB \| RTX 3080 \| ([\d.]+)0 GiB", lambda: (gib("RTX 3080"),)),
    ("docs/causes.md", r"of the RTX 4090\s+torch can use ([\d.]+) GiB", lambda: (gib("RTX 3090/4090"),)),
    ("docs/causes.md", r"torch gets ([\d.]+) GiB of it", lambda: (gib("RTX 4080"),)),
    ("docs/causes.md", r"logits for ([\d,]+) words", lambda: (words_of_gpt(),)),
    (
        "docs/causes.md",
        r"GPT-2 small\]\([^)]*\): (\d+) million parameters",
        lambda: (sample("predicted").categories().totals["parameter"] // 4_000_000,),
    ),
    ("docs/causes.md", r"keeps (\d+) KiB a step", lambda: (f"{leak().bytes_per_step / 1024:.0f}",)),
    ("docs/recording.md", r"a ring of ([\d,]+) entries", lambda: (f"{ring():,}",)),
    ("docs/recording.md", r"at most (\d+) MiB at (450) bytes each", lambda: (ring() * 450 // MIB, 450)),
    ("docs/recording.md", r"old or ([\d,]+) entries wait", lambda: (f"{value(PACE, '_MANY_NEW'):,}",)),
    ("docs/recording.md", r"where a ring stayed, ([\d,]+),", lambda: (f"{value(PACE, '_RETRY_NEW'):,}",)),
    ("docs/recording.md", r'record\(max_size="([^"]+)"\)` \(the default', lambda: (parameter("max_size"),)),
    (
        "docs/recording.md",
        r"no limit; (\d+) MiB is the least",
        lambda: (value("recorder/options.py", "_LEAST_SIZE") // MIB,),
    ),
    (
        "docs/recording.md",
        r"until 3/4 are left, a (\d+)th of the cap at a time",
        lambda: (value("store/retention/compactor.py", "_N_PARTS"),),
    ),
    (
        "docs/recording.md",
        r"of the oldest, above ([\d,]+), every second",
        lambda: (f"{value('store/retention/carry_over.py', 'MOST_SAMPLES'):,}",),
    ),
    (
        "docs/recording.md",
        r"marks fill a (\d+)th of the cap",
        lambda: (round(1 / value("store/retention/carry_over.py", "_SHARE")),),
    ),
    (
        "docs/recording.md",
        r"if the process has grown by (\d) MB",
        lambda: (value("recorder/notifiers/malloc_trimmer.py", "_GROWN_BYTES") // 1_000_000,),
    ),
    (
        "docs/recording.md",
        r"every (\d+) s \(`VRAMSCOPE_UPLOAD_EVERY_S`\)",
        lambda: (f"{value('recorder/uploading.py', 'EVERY_S'):.0f}",),
    ),
    (
        "docs/recording.md",
        r"at most (\d+) s \(`VRAMSCOPE_UPLOAD_WAIT_S`\)",
        lambda: (f"{value('recorder/uploading.py', 'WAIT_S'):.0f}",),
    ),
    (
        "docs/recording.md",
        r"at most (\d+) MiB/s a rank",
        lambda: (f"{value('recorder/uploading.py', 'MIB_PER_S'):.0f}",),
    ),
    (
        "docs/recording.md",
        r"larger than (\d) GiB together",
        lambda: (value("remote/upload.py", "LARGEST_SPOOLS_BYTES") // GIB,),
    ),
    ("docs/leaks.md", r"takes at least (\d) steps", lambda: (value(WATCH, "_RISES") + 1,)),
    ("docs/leaks.md", r"growth of (\d+) KiB a step", lambda: (value(WATCH, "_LEAST_BYTES") // 1024,)),
    ("docs/leaks.md", r"or from each (\d+) steps to the next", lambda: (value(WATCH, "_BLOCK"),)),
    (
        "docs/integrations.md",
        r"port=(\d+)\)  #",
        lambda: (value("integrations/prometheus.py", "DEFAULT_PORT"),),
    ),
    (
        "docs/integrations.md",
        r"the summaries of the (\d+) newest runs",
        lambda: (value("integrations/prometheus.py", "_MOST_RUNS"),),
    ),
    (
        "docs/integrations.md",
        r"at most (\d+) ranks",
        lambda: (value("integrations/_measurements.py", "MOST_RANKS"),),
    ),
    (
        "docs/json.md",
        r"- `schema` is (\d)\.",
        lambda: (sample_schema(),),
    ),
    (
        "docs/tutorial.md",
        r"block of (\d+) bytes",
        lambda: (GRANULE,),
    ),
    ("docs/concepts.md", r"`reserved = ([\w +]+)`", lambda: (" + ".join(Recording().identity().parts),)),
]


def lines_of_leak() -> list[int]:
    return [line.frame.line for line in leak().lines]


def default_port() -> str:
    row = re.search(r"^serve\t--port\t.*default (\d+),", text("dashboard/commands.tsv"), re.MULTILINE)
    return row[1]


def checked_torches() -> tuple[str, ...]:
    return value("prediction/dry/versions.py", "CHECKED")


def ring() -> int:
    return value("capture/cuda/history.py", "MAX_ENTRIES")


def sample_schema() -> int:
    import json
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as out:
        main(["info", str(SAMPLES / "transformer"), "--json"])
    return json.loads(out.getvalue())["schema"]


def said(path: str, passage: str, change: Callable[[str], str] = str) -> tuple[str, ...]:
    """What the document claims in each group, or would with a change; empty where the passage is gone."""
    found = re.search(passage, text(path))
    if found is None or change is str:
        return found.groups() if found else ()
    begin, end = found.span(1)
    again = re.search(passage, text(path)[:begin] + change(found[1]) + text(path)[end:])
    return again.groups() if again else ()


def wrong(claimed: str) -> str:
    """Another number, or another word, of the same length."""
    return re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), claimed, count=1).swapcase()


@pytest.mark.parametrize(("path", "passage", "truth"), CLAIMS, ids=[f"{p}: {w[:40]}" for p, w, _ in CLAIMS])
def test_a_claim_is_what_the_code_has(path, passage, truth):
    true = tuple(map(str, truth()))

    assert said(path, passage) == true
    assert said(path, passage, wrong) != true


def test_there_are_forty_claims_and_no_two_of_the_same_passage():
    assert len({(path, passage) for path, passage, _ in CLAIMS}) == len(CLAIMS) >= 40
