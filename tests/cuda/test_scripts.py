"""The scripts also run where no process has everything imported already: so a GPU machine runs them."""

import subprocess
import sys
from pathlib import Path


def test_a_process_of_its_own_can_make_an_optimizer():
    code = "import children, torch; torch.optim.SGD([torch.zeros(1)])"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, cwd=Path(__file__).parent / "scripts", capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
