"""Train a small transformer and show it while it trains, or open a sample that answers a question."""

import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile

from vramscope.commands import Command, described
from vramscope.errors import MissingExtraError, UsageError, VramscopeError
from vramscope.package_data import rows

_POLL_S = 0.1
_PAGES = "https://vramscope.github.io/vramscope/"
_LOOK = """\
The page fills while it trains. The curve is allocated memory; the bands below it are forward, backward and
optimizer; a click on the curve says what was live at that moment, and in which lines of the script.
"""


def run(args: Namespace) -> int:
    """Show a sample, or record and show the demo training; return the exit code."""
    if args.list or args.sample:
        return _show_sample(args) if args.sample else _list()
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
        return training.wait() or _printed("report", directory)
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


def _serve(directory: Path, port: int | None, words: str = _LOOK) -> int:
    print(words, flush=True)
    return _printed("serve", directory, *([] if port is None else ["--port", str(port)]))


def _printed(command: str, directory: Path, *options: str) -> int:
    from vramscope import commands, registry

    part = registry.part(commands, Command, command)
    parser = ArgumentParser(add_help=False)
    part.arguments(parser)
    return part.run(parser.parse_args([str(directory), *options]))


def _samples() -> list[list[str]]:
    """Return name, folder, script, command, page and question of each sample."""
    return rows(__file__, "_demo.tsv")


def _list() -> int:
    for name, _, script, _, page, question in _samples():
        print(f"vramscope demo {name:8}  {question}  {script}, {_PAGES}{page}")
    return 0


def _show_sample(args: Namespace) -> int:
    (found,) = (row for row in _samples() if row[0] == args.sample)
    _, folder, script, command, page, question = found
    package = Path(__file__).parents[1]
    # A wheel has the samples inside of the package, a checkout beside it.
    place = next(
        each / "sample_traces" for each in (package, package.parent) if (each / "sample_traces").is_dir()
    )
    print(f"{question}\nRecorded by {place / script}, explained at {_PAGES}{page}", flush=True)
    if not args.no_serve:
        try:
            return _serve(place / folder, args.port, "")
        except MissingExtraError as error:
            print(f"no dashboard here: {error}")
    return _printed(command, place / folder)


COMMAND = described("demo", run, choices={"sample": [name for name, *_ in _samples()]})
