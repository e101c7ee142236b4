"""Options from the environment and pyproject.toml fill in what a call does not give, and nothing else."""

import pytest

from vramscope.errors import UsageError
from vramscope.recorder.configured import completed


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current directory: an empty one below that of ``pyproject.toml``."""
    (tmp_path / "inside" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside" / "deeper")
    return tmp_path


def project(folder, text):
    (folder / "pyproject.toml").write_text(text)


def test_a_call_wins_over_the_environment_and_that_over_the_project(folder, monkeypatch):
    project(
        folder, '[tool.vramscope]\nstack_depth = 7\nmax_size = "1 GiB"\ncapacity = "3 GiB"\nquiet = true\n'
    )
    monkeypatch.setenv("VRAMSCOPE_STACK_DEPTH", "9")
    monkeypatch.setenv("VRAMSCOPE_CAPACITY", "4 GiB")
    monkeypatch.setenv("VRAMSCOPE_TAGS", "fp8, big")

    found = completed({"capacity": "5 GiB"})

    assert found == (None, "auto", "events", None, "5 GiB", 9, "1 GiB", True, "fp8, big", "")


def test_without_any_there_are_the_defaults():
    assert completed({}) == (None, "auto", "events", None, None, 64, "2 GiB", False, "", "")


def test_a_directory_is_relative_to_the_project(folder):
    project(folder, '[tool.vramscope]\ndirectory = "traces/mine"\n')

    assert completed({}).directory == str(folder / "traces" / "mine")


def test_a_url_is_no_path_below_the_project(folder):
    project(folder, '[tool.vramscope]\ndirectory = "s3://bucket/run"\n')

    assert completed({}).directory == "s3://bucket/run"


def test_no_limit_is_a_word_outside_and_none_inside(monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_MAX_SIZE", "none")

    assert completed({}).max_size is None
    assert completed({"max_size": "1 GiB"}).max_size == "1 GiB"


@pytest.mark.parametrize(
    ("configured", "given"),
    [
        ({"MODE": "counters"}, {"device": "simulated"}),
        ({"CAPACITY": "3 GiB", "STACK_DEPTH": "3"}, {"mode": "counters"}),
        ({"DEVICE": "simulated"}, {"mode": "counters"}),
        ({"CAPACITY": "3 GiB"}, {"device": "cuda"}),
    ],
)
def test_what_is_configured_gives_way_to_a_call_that_it_contradicts(configured, given, monkeypatch):
    for name, value in configured.items():
        monkeypatch.setenv(f"VRAMSCOPE_{name}", value)

    found = completed(given)._asdict()
    assert {name: found[name] for name in given} == given
    for name in configured:
        assert found[name.lower()] == given.get(name.lower(), DEFAULTS[name.lower()])


DEFAULTS = {"mode": "events", "device": "auto", "capacity": None, "stack_depth": 64}


def test_an_unknown_variable_is_ignored_with_one_line(monkeypatch, capsys):
    monkeypatch.setenv("VRAMSCOPE_MDE", "counters")

    for _ in range(2):
        assert completed({}).mode == "events"
    (line,) = capsys.readouterr().err.splitlines()
    assert "VRAMSCOPE_MDE is ignored" in line
    assert "VRAMSCOPE_MODE" in line


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("VRAMSCOPE_STACK_DEPTH", "deep", "a number of frames"),
        ("VRAMSCOPE_QUIET", "perhaps", "true or false"),
    ],
)
def test_an_error_names_the_variable_and_what_there_is(name, value, says, monkeypatch):
    monkeypatch.setenv(name, value)

    with pytest.raises(UsageError, match=says) as raised:
        completed({})
    assert name in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.vramscope]\nmdoe = 'counters'\n", "mdoe"),
        ("[tool.vramscope]\nstack_depth = 'deep'\n", "a number of frames"),
        ("[tool.vramscope]\nmode = ['counters']\n", "not \\['counters'\\]"),
        ("[tool.vramscope]\nmode = \n", "this is not TOML"),
    ],
)
def test_an_error_names_the_file(text, says, folder):
    project(folder, text)

    with pytest.raises(UsageError, match=says) as raised:
        completed({})
    assert str(folder / "pyproject.toml") in str(raised.value)


@pytest.mark.parametrize(
    "text", ["[tool.other]\nmode = 1\n", "this is = no TOML =", "[tool.vramscope.checks]\na = 1\n"]
)
def test_what_is_of_others_is_left_alone(text, folder):
    project(folder, text)

    assert completed({}) == (None, "auto", "events", None, None, 64, "2 GiB", False, "", "")


@pytest.mark.usefixtures("folder")
def test_which_steps_have_events_is_configured_and_a_call_for_them_wins_over_counters(monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_EVERY", "100")
    monkeypatch.setenv("VRAMSCOPE_MODE", "counters")

    assert completed({"mode": "events"}).every == 100
    assert completed({"mode": "counters"}).every is None
    assert completed({"every": 7}) == (None, "auto", "events", 7, None, 64, "2 GiB", False, "", "")
