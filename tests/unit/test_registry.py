"""A folder is a registry: one file with one constant adds a part, and each mistake has its own message."""

import sys
import textwrap
from dataclasses import dataclass
from importlib import import_module

import pytest

from vramscope import registry
from vramscope.errors import UnknownNameError


@dataclass(frozen=True)
class Word:
    name: str


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package that files can be added to; ``Word`` is importable from it."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "words_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    module = import_module("words_for_test")
    module.Word = Word

    def add(file, text):
        code = textwrap.dedent(text)
        (package / file).write_text(f"from words_for_test import Word\n{code}")
        return module

    yield add
    for name in [name for name in sys.modules if name.startswith("words_for_test")]:
        del sys.modules[name]


def test_a_file_with_the_constant_is_a_part(folder):
    module = folder("hello.py", "WORD = Word('hello')")

    assert registry.parts(module, Word) == {"hello": Word("hello")}
    assert registry.part(module, Word, "hello") == Word("hello")


def test_a_part_in_a_file_of_its_name_is_found_without_loading_the_others(folder):
    folder("broken.py", "raise ValueError")
    module = folder("hello.py", "WORD = Word('hello')")

    assert registry.part_in_own_file(module, Word, "hello") == Word("hello")
    assert registry.part_in_own_file(module, Word, "nothing") is None


def test_a_part_in_a_file_of_another_name_is_not_found_by_its_file(folder):
    folder("_hidden.py", "WORD = Word('_hidden')")
    folder("wrong.py", "WORD = 'wrong'")
    module = folder("greeting.py", "WORD = Word('hello')")

    names = ("greeting", "hello", "_hidden", "wrong", "../greeting")
    assert [registry.part_in_own_file(module, Word, name) for name in names] == [None] * 5


def test_helpers_and_files_without_the_constant_are_not_parts(folder):
    folder("_helper.py", "WORD = Word('hidden')")

    assert registry.parts(folder("empty.py", ""), Word) == {}


def test_a_name_taken_twice_is_refused(folder):
    folder("one.py", "WORD = Word('same')")

    with pytest.raises(TypeError, match="'same' exists already"):
        registry.parts(folder("two.py", "WORD = Word('same')"), Word)


def test_a_constant_of_the_wrong_type_is_refused(folder):
    with pytest.raises(TypeError, match="expected a Word"):
        registry.parts(folder("wrong.py", "WORD = 'text'"), Word)


def test_an_unknown_name_lists_what_there_is(folder):
    with pytest.raises(UnknownNameError, match="no word called 'x'; there is: hello"):
        registry.part(folder("hello.py", "WORD = Word('hello')"), Word, "x")


class Point:
    """An entry point of another distribution, whose module does not load."""

    name, value = "theirs", "theirs:WORD"

    def load(self):
        raise ImportError("no module named 'theirs'")


def test_a_strangers_broken_part_is_in_nobody_elses_way(folder, monkeypatch):
    module = folder("hello.py", "WORD = Word('hello')")
    monkeypatch.setattr("vramscope.registry.entry_points_of", lambda _: [Point()])

    assert registry.part(module, Word, "hello") == Word("hello")
    with pytest.raises(UnknownNameError, match=r"there is: hello$"):
        registry.part(module, Word, "other")
    with pytest.raises(ImportError, match="theirs"):
        registry.part(module, Word, "theirs")
