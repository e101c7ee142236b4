"""Which statement keeps it: its own text, and only where there is one."""

import importlib
import linecache

import pytest

from vramscope.capture.holders import statement
from vramscope.capture.holders.bounds import bounded_at


def forget_files():
    linecache.checkcache()
    for cached in (statement._statements, statement._carried, statement._carrying, statement.parsed):
        cached.cache_clear()


def statements_at(tmp_path, source, *words):
    file = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    forget_files()
    found = statement.kept_at((("global", "kept", file), *words))
    return [(word[2], word[3]) for word in found]


ITEM = ("item", 0, "list")


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("x = 1\nkept.append(x)  # remember", 2, "kept.append(x)"),
        ("x = f('é'); kept.append(x.detach()); done(x)", 1, "kept.append(x.detach())"),
        ('kept["#1"] = x  # no. 1', 1, 'kept["#1"] = x'),
        ("kept.append(\n    (1,  # one\n     2)\n)", 1, "kept.append(…"),
        ("kept += [x]; kept.append(y)", 1, "kept += [x]"),
        ("kept.setdefault(0, []).append(x)", 1, "kept.setdefault(0, []).append(x)"),
        ("kept.get(node).append(x)", 1, "kept.get(node).append(x)"),
    ],
)
def test_the_statement_is_given_without_what_stands_beside_it(tmp_path, source, line, text):
    assert statements_at(tmp_path, source, ITEM) == [(line, text)]


def test_a_long_statement_is_cut_and_shows_that_it_is(tmp_path):
    ((_, text),) = statements_at(tmp_path, f"kept.append({'x' * 500})", ITEM)

    assert (len(text), text[-2:]) == (120, "x…")


def test_neither_of_two_statements_is_given(tmp_path):
    assert statements_at(tmp_path, "kept.append(1)\nkept.append(2)", ITEM) == []


def test_what_is_not_python_tells_nothing(tmp_path):
    assert statements_at(tmp_path, "%matplotlib inline\nkept.append(1)", ITEM) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("kept = join(kept, x)", [(2, "kept = join(kept, x)")]),
        ("both = join(x, kept); kept = both.detach()", [(2, "kept = both.detach()")]),
        ("kept = ahead; ahead = load()", []),
        ("kept = load(); kept = kept + 1", []),
    ],
)
def test_a_tensor_that_a_loop_carries_on_is_kept_where_it_is_assigned_again(tmp_path, body, expected):
    """One that a loop only fetches ahead, or makes anew, is no state."""
    assert statements_at(tmp_path, f"while True:\n    {body}") == expected


TOTAL = (("attribute", "total", "Meter"), ("graph", "", 1))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("self.total = self.total + x", [(3, "self.total = self.total + x")]),
        ("new = self.total + x; self.total = new", [(3, "self.total = new")]),
        ("self.total = x.total()", []),
        ("self.total = x", []),
    ],
)
def test_an_attribute_that_carries_a_graph_on_is_kept_where_it_is_assigned_again(tmp_path, body, expected):
    source = f"class Meter:\n    def add(self, x):\n        {body}"

    assert statements_at(tmp_path, source, *TOTAL) == expected


def test_what_fills_an_attribute_may_stand_in_the_file_of_its_class(tmp_path):
    """The program's variable is in one file, the class of what it names in another one."""
    train, memory = tmp_path / "train.py", tmp_path / "memory.py"
    train.write_text("from memory import Memory\nbuffer = Memory()\n", encoding="utf-8")
    memory.write_text(
        "def put(buffer, x):\n    buffer.append(x)\n\nclass Memory:\n    def push(self, x):\n"
        "        if len(self.items) < 100:\n            self.items.append(x)\n",
        encoding="utf-8",
    )
    forget_files()
    words = (("global", "buffer", str(train)), ("attribute", "items", "Memory"), ITEM)

    assert list(statement.kept_at(words)) == []
    assert list(statement.kept_at(words, (str(memory),))) == [
        ("kept_at", str(memory), 7, "self.items.append(x)", 2)
    ]
    assert [word[4:] for word in bounded_at(words, (str(memory),))] == [(2, 100)]
    # A variable of the same name in the other file is another one.
    assert list(statement.kept_at((("global", "buffer", str(train)), ITEM), (str(memory),))) == []


def test_the_class_of_the_last_attribute_before_a_container_decides(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "parts_of_a_test.py").write_text("class Memory:\n    pass\n", encoding="utf-8")
    memory = importlib.import_module("parts_of_a_test").Memory()
    words = (
        ("global", "trainer", "train.py"),
        ("attribute", "memory", "Trainer"),
        ("attribute", "items", "Memory"),
    )

    assert statement.class_files((*words, ITEM), (object(), memory, [], None)) == (
        str(tmp_path / "parts_of_a_test.py"),
    )


def test_a_constant_key_tells_two_statements_apart(tmp_path):
    source = 'kept["loss"].append(loss.item())\nkept["out"].append(out)'
    way = ("key", "'out'", "dict"), ITEM

    assert statements_at(tmp_path, source, *way) == [(2, 'kept["out"].append(out)')]
    assert statements_at(tmp_path, f"{source}\nkept[name].append(out)", *way) == []


@pytest.mark.parametrize(
    ("first", "beside"),
    [
        (("global", "running"), ("default", "kept", "running")),
        (("unnamed", "generator"), ("frame", "kept", "batches")),
    ],
)
def test_a_default_argument_and_a_generators_variable_are_named_as_others_are(tmp_path, first, beside):
    file = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("kept.append(x)", encoding="utf-8")
    forget_files()
    words = (*first, file) if first[0] == "global" else first, (*beside, file, 1), ITEM

    (found,) = statement.kept_at(words)

    assert found[1:4] == (file, 1, "kept.append(x)")


def test_a_path_of_one_word_with_a_graph_has_no_key(tmp_path):
    source = "while True:\n    kept = kept + x\n    kept = kept * x"

    assert statements_at(tmp_path, source, ("graph", "", 4)) == []
