"""Which statement keeps it: its own text, and only where there is one."""

import linecache

import pytest

from vramscope.capture.holders import statement


def statements_at(tmp_path, source, *words):
    file = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    linecache.checkcache()
    for cached in (statement._statements, statement._carried, statement._carrying, statement.parsed):
        cached.cache_clear()
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
