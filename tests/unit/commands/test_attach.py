"""``vramscope attach`` finds the process, or says in one sentence why it cannot be reached."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from vramscope.cli import main
from vramscope.commands._attached_process import answer_of
from vramscope.errors import CaptureError
from vramscope.recorder.from_outside import address, moment

ROOT = Path(__file__).parents[3]
DETACH = {"do": "detach"}
RUNS_SCRIPTS = """
import os, pathlib, sys, time
if not os.environ["PYTHONPATH"]:
    sys.modules["vramscope"] = None  # ours is installed in this environment
print("ready", flush=True)
while True:
    time.sleep(0.01)
    for order in pathlib.Path(sys.argv[1]).glob("*.order"):
        path = order.read_text()
        order.unlink()
        exec(open(path).read(), {})
"""


@contextmanager
def running(started, *command, **more):
    with started(command, stderr=subprocess.PIPE, **more) as process:
        assert process.stdout.readline()
        yield process


@pytest.fixture
def python(started, tmp_path):
    """``with python(path) as process:`` a Python that runs the scripts of ``execute``."""
    (tmp_path / "program.py").write_text(RUNS_SCRIPTS)

    def start(path):
        environment = {**os.environ, "PYTHONPATH": str(path)}
        return running(
            started, sys.executable, tmp_path / "program.py", tmp_path, cwd=tmp_path, env=environment
        )

    return start


@pytest.fixture
def execute(tmp_path):
    """A double of ``sys.remote_exec``, which needs Python 3.14."""

    def remote_exec(pid, script):
        whole = tmp_path / f"{pid}.new"
        whole.write_text(script)
        whole.rename(tmp_path / f"{pid}.order")

    return remote_exec


def test_an_unknown_process_is_one_sentence(capsys):
    nobody = 2**22 - 1

    assert main(["attach", str(nobody)]) == 1
    assert capsys.readouterr().err == f"vramscope: there is no process {nobody} here\n"


def test_a_program_that_is_no_python_is_named(started):
    with (
        running(started, "sh", "-c", "echo; sleep 60 & wait") as process,
        pytest.raises(CaptureError, match=rf"process {process.pid} \(sh\) does not listen, and is no Python"),
    ):
        answer_of(process.pid, DETACH)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python can be made to listen")
def test_a_python_that_does_not_listen_is_told_how_it_could(python):
    with (
        python(ROOT) as process,
        pytest.raises(CaptureError, match=r"run --detached`, or call .*allow_attach"),
    ):
        answer_of(process.pid, DETACH)


def test_a_process_of_another_user_is_not_touched(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4242)

    with pytest.raises(CaptureError, match=r"process 1 belongs to root: only that user and root may attach"):
        answer_of(1, DETACH)


def test_a_python_of_remote_execution_is_made_to_listen(python, execute):
    with python(ROOT) as process:
        with pytest.raises(CaptureError, match=f"process {process.pid}: nothing is attached to it"):
            answer_of(process.pid, DETACH, execute=execute)
        with pytest.raises(CaptureError, match="it has not imported torch yet"):
            answer_of(process.pid, {"do": "attach", "options": {}})  # it listens from now on
        assert process.poll() is None


def test_a_python_without_vramscope_says_so_and_goes_on(python, execute):
    with python("") as process:
        with pytest.raises(CaptureError, match="cannot listen: ModuleNotFoundError"):
            answer_of(process.pid, DETACH, execute=execute)
        assert process.poll() is None


def test_a_refused_execution_is_named_with_its_usual_reason(python):
    def refuse(*_):
        raise PermissionError("Operation not permitted")

    with (
        python(ROOT) as process,
        pytest.raises(CaptureError, match=r"not permitted \(kernel.yama.ptrace_scope"),
    ):
        answer_of(process.pid, DETACH, execute=refuse)


def test_whoever_has_the_number_of_a_killed_process_does_not_listen(started, capsys):
    with running(started, "bash", "-c", "echo ready; sleep 100; true") as process:
        path = address.socket_path(process.pid, os.getuid())
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
            left.listen()
            assert main(["attach"]) == 0
            assert f"{process.pid}  bash" in capsys.readouterr().out
        assert main(["attach"]) == 0
        path.unlink()

    assert f"{process.pid}  bash" not in capsys.readouterr().out


def test_a_directory_of_another_owner_is_refused():
    nobody = 424242
    folder = Path(f"/tmp/vramscope-attach-{nobody}")
    folder.mkdir(exist_ok=True)
    try:
        with pytest.raises(CaptureError, match="is no private directory of its user"):
            address.private_home(nobody)
    finally:
        folder.rmdir()


LISTENS = """
import time, vramscope
vramscope.allow_attach()
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
ODD_REQUESTS = (
    b"[]\n",
    b"\xff\xfe\n",
    b"[" * 60_000 + b"\n",
    b"x" * 200_000,
    b'{"do": "detach", "wait_s": NaN}\n',
    b'{"do": "detach", "wait_s": %s}\n' % (b"9" * 5000),
    b'{"do": "detach", "wait_s": -1}\n',
    b'{"do": ["attach"], "wait_s": 1, "options": []}\n',
    b'{"wait_s": 1}\n',
)


def test_odd_requests_and_those_who_say_nothing_keep_nobody_waiting(started):
    command = (sys.executable, "-c", LISTENS)
    with running(started, *command) as process, ExitStack() as stays_open:
        path = str(address.socket_path(process.pid, os.getuid()))
        for request in (*[b""] * 40, *[b"{"] * 20, *ODD_REQUESTS):
            line = stays_open.enter_context(socket.socket(socket.AF_UNIX))
            line.connect(path)
            with suppress(BrokenPipeError):  # it reads no more than the longest request
                line.sendall(request)
        # In less than the time after which it hangs up on those who say nothing.
        answer = address.ask(Path(path), DETACH | {"wait_s": 1}, longest_s=8)

        assert answer == {"error": "nothing is attached to it"}
        assert process.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_is_no_peer_even_where_the_socket_lets_everybody_in(tmp_path):
    connects = (
        "import os, socket, sys\nos.setuid(int(sys.argv[1]))\nsocket.socket(1).connect('\\0' + sys.argv[2])"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{tmp_path}")
        listener.listen()
        seen = []
        for user in (0, 4242):
            subprocess.run([sys.executable, "-c", connects, str(user), str(tmp_path)], check=True)
            with listener.accept()[0] as line:
                seen.append(address.peer_is_ours(line))

    assert seen == [True, False]


# --------------------------------------------------------------------------------------- moments


def frame_in(file):
    """The frames of two functions in *file*, of which one is called ``wait``."""
    space = {"inner": sys._getframe}
    exec(compile("def wait(): return inner()\ndef start(): return inner()", file, "exec"), space)
    return space["start"](), space["wait"]()


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("{torch}/nn/modules/module.py", "it is inside of a call of torch"),
        ("{torch}/utils/_contextlib.py", ""),
        ("{vramscope}/recorder/__init__.py", "it runs vramscope itself"),
        ("{vramscope}/commands/run.py", ""),
        ("<frozen importlib._bootstrap>", "it imports a module"),
        ("/usr/lib/python3/threading.py", "it starts a thread or writes a log"),
        ("/home/me/train.py", ""),
    ],
)
def test_a_recording_begins_between_two_calls_only(file, reason):
    torch = pytest.importorskip("torch")
    homes = {"torch": Path(torch.__file__).parent, "vramscope": ROOT / "vramscope"}
    frame, waiting = frame_in(file.format(**homes))

    assert moment.hindrance(frame, begins=True) == reason
    if "threading" in file:
        assert moment.hindrance(waiting, begins=True) == ""


def test_a_recording_does_not_begin_inside_of_a_dispatch_mode():
    pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    frame, _ = frame_in("/home/me/train.py")
    with Mode():
        assert moment.hindrance(frame, begins=True) == "it is inside of a dispatch mode of torch"
        assert moment.hindrance(frame, begins=False) == ""
