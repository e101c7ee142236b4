"""An agent asks over MCP's own client, and gets what the commands print."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs mcp: make test-integrations")

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from vramscope.commands._mcp_tools import MOST_CHARACTERS, bounded

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "sample_traces"


def asked(*questions, root=TRACES, options=()):
    """The answers of a server to (tool, arguments), and the tools that it offers."""

    async def talk():
        command = ["-m", "vramscope", "mcp", str(root), *options]
        server = StdioServerParameters(command=sys.executable, args=command)
        with anyio.fail_after(200):
            async with stdio_client(server) as streams, ClientSession(*streams) as session:
                await session.initialize()
                tools = (await session.list_tools()).tools
                return tools, [await session.call_tool(name, given) for name, given in questions]

    # In a thread of its own: the browser's tests leave a loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, talk).result()


def printed(*arguments):
    command = [sys.executable, "-m", "vramscope", *arguments, "--json"]
    return json.loads(
        subprocess.run(command, capture_output=True, check=True, timeout=200, cwd=TRACES).stdout
    )


def is_error(answer) -> bool:
    return bool(getattr(answer, "is_error", None) or getattr(answer, "isError", None))


def object_of(answer):
    (content,) = answer.content
    assert not is_error(answer), content.text
    assert len(content.text) <= MOST_CHARACTERS
    return json.loads(content.text)


def holds(short, whole) -> bool:
    """Whether everything in *short* is in *whole*, lists being cut and counted."""
    if isinstance(short, dict):
        known = {name: value for name, value in short.items() if not name.endswith("_left_out")}
        counted = {name: value for name, value in short.items() if name not in known}
        return all(holds(value, whole[name]) for name, value in known.items()) and all(
            len(known[name.removesuffix("_left_out")]) + n == len(whole[name.removesuffix("_left_out")])
            for name, n in counted.items()
        )
    if isinstance(short, list):
        return all(holds(mine, theirs) for mine, theirs in zip(short, whole, strict=False))
    return short == whole


def test_every_answer_is_what_the_command_prints():
    tools, answers = asked(
        ("open", {"path": "transformer"}),
        ("peak", {"path": "transformer"}),
        ("leaks", {"path": "gan-retain-graph"}),
        ("fit", {"path": "transformer-cuda", "capacity": "24GiB"}),
        ("compare", {"before": "transformer", "after": "gan-retain-graph"}),
    )
    objects = [object_of(answer) for answer in answers]
    commands = [
        printed("info", str(TRACES / "transformer")),
        printed("report", str(TRACES / "transformer")),
        printed("leaks", str(TRACES / "gan-retain-graph")),
        printed("fit", str(TRACES / "transformer-cuda"), "--capacity", "24GiB"),
        printed("diff", str(TRACES / "transformer"), str(TRACES / "gan-retain-graph")),
    ]

    assert {tool.name for tool in tools} == {"open", "peak", "leaks", "fit", "compare"}
    assert all(holds(*pair) for pair in zip(objects, commands, strict=True))
    assert objects[1]["recordings"][0]["peak"] == commands[1]["recordings"][0]["peak"]
    assert objects[2]["findings"][0]["cause"] == "retain_graph"


def test_a_folder_lists_its_runs_and_nothing_outside_of_it_is_opened():
    _, (listed, outside, missing) = asked(
        ("open", {}), ("peak", {"path": "../README.md"}), ("peak", {"path": "nowhere"})
    )

    assert {"transformer", "gan-retain-graph", "transformer-cuda"} <= set(object_of(listed)["runs"])
    assert is_error(outside)
    assert "outside of" in outside.content[0].text
    assert is_error(missing)
    assert "nowhere" in missing.content[0].text


def test_a_prediction_is_offered_only_where_it_is_allowed(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "net = torch.nn.Linear(1024, int(sys.argv[1])).cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters())\n"
        "for _ in range(3):\n"
        "    net(torch.ones(8, 1024, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    tools, (answer,) = asked(
        ("predict", {"script": "train.py", "arguments": ["2048"]}), root=tmp_path, options=["--allow-predict"]
    )

    assert "predict" in {tool.name for tool in tools}
    assert object_of(answer)["peak_allocated_bytes"] >= 2 * 1024 * 2048 * 4
    assert object_of(answer)["fits"] is True


def test_an_answer_of_any_size_is_bounded_and_says_what_it_leaves_out():
    many = {"steps": [{"index": i, "name": "x" * 5000} for i in range(100_000)]}
    answer = json.loads(bounded(many))

    assert len(json.dumps(answer)) <= MOST_CHARACTERS
    assert len(answer["steps"]) + answer["steps_left_out"] == 100_000


def test_a_run_whose_parts_are_links_to_elsewhere_is_refused_and_an_odd_argument_is_told(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "served"
    shutil.copytree(TRACES / "transformer", outside)
    for name in ("whole", "files", "inside", "twice"):
        (root / name).mkdir(parents=True)
    (root / "whole" / "rank0").symlink_to(outside / "rank0")
    (root / "files" / "rank0").mkdir()
    for file in (outside / "rank0").iterdir():
        (root / "files" / "rank0" / file.name).symlink_to(file)
    shutil.copytree(outside / "rank0", root / "kept")
    (root / "inside" / "rank0").symlink_to(root / "kept")
    (root / "inside" / "loop").symlink_to(root / "inside")
    (root / "twice" / "rank0").symlink_to(root / "files" / "rank0")
    (root / "itself").symlink_to("itself")
    (root / "inside" / "itself").symlink_to("itself")
    questions = [("peak", {"path": name}) for name in ("whole", "files", "twice", "inside", "a\0b")]
    questions.append(("peak", {"path": "itself"}))
    _, answers = asked(*questions, ("fit", {"path": "inside", "capacity": "\0"}), root=root)

    assert [is_error(answer) for answer in answers] == [True, True, True, False, True, True, True]
    assert all("leads out of" in answer.content[0].text for answer in answers[:3])
    assert all("NUL" in answers[at].content[0].text for at in (4, 6))
    assert "leads nowhere" in answers[5].content[0].text
