"""Lines are named so that a person distinguishes them, and no two rows read the same."""

import pytest

from vramscope.analysis.lines import LiveBytes, common_module, line_words, lines, module_words, place_words
from vramscope.model.marks import Category
from vramscope.model.stacks import Frame

MLP = Frame("forward", "/home/me/net/transformer.py", 45)
BLOCK = Frame("block", "/home/me/net/transformer.py", 60)
MAIN = Frame("<module>", "/home/me/net/train.py", 9)


def live(
    n_bytes: int, *frames: Frame, module: str = "", via: str = "linear", is_library: bool = False
) -> LiveBytes:
    return LiveBytes(n_bytes, 1, Category.ACTIVATION, module, frames, is_library, via, 7)


@pytest.mark.parametrize(
    ("paths", "common"),
    [
        ([], ""),
        ([""], ""),
        (["h.3.mlp", ""], "h.3.mlp"),
        (["h.0.mlp", "h.11.mlp"], "h.*.mlp"),
        (["h.0.mlp.fc", "h.0.attn"], "h.0.*"),
        (["h.0.mlp.fc", "h.1.mlp.act"], "h.*.mlp.*"),
        (["h.0", "h.0.mlp"], "h.0"),
        (["encoder", "decoder"], "2 modules"),
        (["0", "0.up", "1"], "3 modules"),
    ],
)
def test_modules_are_named_by_what_they_have_in_common(paths, common):
    assert common_module(paths) == common


@pytest.mark.parametrize(
    ("path", "words"),
    [("0", "module 0"), ("0.2", "module 0.2"), ("encoder.0", "encoder.0"), ("3 modules",) * 2],
)
def test_a_part_that_has_only_a_number_is_called_a_module(path, words):
    assert module_words(path) == words


def test_rows_that_read_the_same_are_one_however_they_were_reached():
    outer = [Frame("main", "/home/me/net/train.py", line) for line in range(8)]
    rows = [live(10 + i, MLP, BLOCK, frame, module=f"h.{i}.mlp") for i, frame in enumerate(outer)]

    (line,) = lines(rows)

    assert (line.n_bytes, line.n_blocks, line.module) == (sum(range(10, 18)), 8, "h.*.mlp")
    assert line_words(line) == (
        "net/transformer.py:45 forward: linear ← net/transformer.py:60 block  [h.*.mlp]  +8 frames"
    )


def test_another_function_of_the_library_or_another_caller_is_another_row():
    rows = [live(3, MLP, BLOCK), live(2, MLP, BLOCK, via="gelu"), live(1, MLP, MAIN)]

    words = [line_words(line) for line in lines(rows)]

    assert len(set(words)) == 3


def test_a_librarys_line_is_marked_as_such():
    (line,) = lines([live(3, Frame("run", "/x/site-packages/accelerate/optimizer.py", 5), is_library=True)])

    assert line_words(line).startswith("(library) accelerate/optimizer.py:5 run: linear")


def test_a_file_is_named_with_its_folder_on_every_system():
    assert place_words(r"C:\\me\\net\\model.py", 3) == "net/model.py:3"
    assert place_words("train.py", 3) == "train.py:3"
