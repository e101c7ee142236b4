"""Train a small transformer for real, record it, and show it while it trains."""

import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile

from vramscope.commands import Command, described
from vramscope.errors import MissingExtraError, UsageError, VramscopeError

_POLL_S = 0.1
_LOOK = """\
The page fills while it trains. The curve is allocated memory; the bands below it are forward, backward and
optimizer; a click on the curve says what was live at that moment, and in which lines of the script.
"""


def run(args: Namespace) -> int:
    """Record and show the demo training; return the exit code."""
    if find_spec("torch") is None:
        raise MissingExtraError("PyTorch", "torch")
    directory = Path(args.output or f"traces/demo-{time.strftime('%Y%m%d-%H%M%S')}")
    training = _start(directory, args.steps)
    try:
        if not args.no_serve:
            try:
                return _serve(directory, args.port)
            except MissingExtraError as error:
                print(f"no dashboard here: {error}")
        return training.wait() or _report(directory)
    finally:
        training.terminate()
        training.wait()


def _start(directory: Path, steps: int) -> "subprocess.Popen[bytes]":
    script = directory.with_name(f"{directory.name}.py")
    if directory.exists() or script.exists():
        raise UsageError(f"{directory}: there is something already; choose another --output")
    script.parent.mkdir(parents=True, exist_ok=True)
    # The script is copied: users can open, change and run the lines that the report names.
    copyfile(Path(__file__).with_name("_demo_train.py"), script)
    print(f"training {script} for {steps} steps, recorded to {directory}", flush=True)
    # A session of its own: Ctrl-C reaches only the dashboard, which then ends the training cleanly.
    training = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, str(script), str(directory), str(steps)], start_new_session=True
    )
    while not directory.exists() and training.poll() is None:
        time.sleep(_POLL_S)
    if not directory.exists():
        raise VramscopeError(
            f"the training ended with exit code {training.wait()} before it recorded anything"
        )
    return training


def _serve(directory: Path, port: int | None) -> int:
    from vramscope import commands, registry

    print(_LOOK, flush=True)
    serve = registry.part(commands, Command, "serve")
    parser = ArgumentParser(add_help=False)
    serve.arguments(parser)
    options = [] if port is None else ["--port", str(port)]
    return serve.run(parser.parse_args([str(directory), *options]))


def _report(directory: Path) -> int:
    from vramscope.commands.report import COMMAND as REPORT

    parser = ArgumentParser(add_help=False)
    REPORT.arguments(parser)
    return REPORT.run(parser.parse_args([str(directory)]))


COMMAND = described("demo", run)
