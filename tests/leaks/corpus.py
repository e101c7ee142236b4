"""The corpus: which scripts there are, what their comments say of them, and what was found of it."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import vramscope
from vramscope.analysis.leaks import findings

HERE = Path(__file__).parent
# The simulated device sees a thread only where it enters record() itself.
OF_OTHER_THREADS = frozenset({"leak_futures_of_evaluation"})

# The batch grows late; it takes seven evaluations.
NEED_MORE_STEPS = frozenset({"batch_larger_later", "leak_evaluation_losses"})


@dataclass(frozen=True)
class Script:
    """One script, and what its comments say is wrong with it; cause '' for nothing."""

    path: Path
    cause: str
    lines: frozenset[int]
    holder: str
    kept_at: int
    edit: str = ""
    """Words of the advice; '' where the script does not say."""

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"


@dataclass(frozen=True)
class Result:
    """What was found in a recording of a script."""

    script: Script
    findings: list
    n_iterations: int

    @property
    def leak(self):
        """The largest."""
        return self.findings[0] if self.findings else None

    @property
    def has_right_line(self) -> bool:
        return self.leak is not None and self.leak.line in self.script.lines

    @property
    def has_right_holder(self) -> bool:
        """Whether the variable's own name is a word of the reported text."""
        said = "" if self.leak is None else f"{self.leak.holder} {self.leak.evidence['holder_path']}"
        return self.leak is not None and bool(re.search(rf"\b{self.script.holder}\b", said))


def scripts(folder: str, device: str = "cuda") -> list[Script]:
    """The scripts for a device in one folder: leaking, clean, holdout, trial, unseen or field."""
    paths = sorted((HERE / folder).glob("*.py"))
    return [_script(path) for path in paths if device == "cuda" or path.stem not in OF_OTHER_THREADS]


def _script(path: Path) -> Script:
    lines = list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    causes = {found[1] for _, line in lines if (found := re.search(r"# LEAK: (\w+)", line))}
    holders = [found[1] for _, line in lines if (found := re.search(r"HOLDER: (\w+)", line))]
    assert len(causes) <= 1, f"{path}: one cause a script"
    return Script(
        path,
        cause=next(iter(causes), ""),
        lines=frozenset(number for number, line in lines if "# LEAK: " in line),
        holder=holders[0] if holders else "",
        edit=next((found[1].strip() for _, line in lines if (found := re.search(r"EDIT: (.+)$", line))), ""),
        kept_at=next((number for number, line in lines if re.search(r"#.*\bKEPT\b", line)), 0),
    )


def record(python: str, chosen: list[Script], out: Path, *, device: str, steps: int, env: dict) -> list[Path]:
    """Recordings of the scripts, made in one process."""
    command = [python, HERE / "run.py", out, device, steps, *(script.path for script in chosen)]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=env, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "stopped recording" not in done.stderr, done.stderr
    return [out / f"{script.path.parent.name}-{script.path.stem}-{steps}" for script in chosen]


def examine(script: Script, path: Path) -> Result:
    """What the analysis says of a recording."""
    (recording,) = vramscope.load(path).recordings
    return judge(script, recording)


def judge(script: Script, recording) -> Result:
    found = recording.leaks()
    # A buffer that fills up to its bound is no leak.
    told = [each for each in findings(found) if each.kind != "filling_buffer"]
    return Result(script, told, len(found.iteration_boundaries))
