"""A recorded program computes the same bits, on the same random numbers, as one that is not."""

from vramscope.load import load
from vramscope.record import record


def test_losses_and_random_state_are_the_same_bits(program, tmp_path):
    bare = program(5)
    with record(tmp_path / "run", quiet=True):
        recorded = program(5)

    assert recorded == bare
    assert len(load(tmp_path / "run").recordings[0].trace) > 100


def test_so_they_are_with_a_block_per_step(program, tmp_path):
    bare = program(5)
    recorder = record(tmp_path / "run", quiet=True)
    recorder.__enter__()

    def next_block():
        recorder.__exit__(None, None, None)
        recorder.__enter__()

    recorded = program(5, next_block)
    recorder.__exit__(None, None, None)

    assert recorded == bare
    assert len(load(tmp_path / "run").recordings[0].trace) > 100
