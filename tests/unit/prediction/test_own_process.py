"""What a dry run does to the process it runs in: nothing that whoever uses torch afterwards could notice."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from vramscope.prediction.dry.shim import light_symbols  # noqa: E402

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

TRAINED = """
import os, sys, torch

def train():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

predict(train)
"""


PREDICT = "from vramscope import predict\n"
LAST = """
from functools import partial
from vramscope.prediction.once import run_once
from vramscope.prediction.trial import Trial
predict = partial(run_once, Trial(), is_last=True)
"""


def _lines(text: str, first: str = PREDICT) -> list[str]:
    """The output of a process that runs *first*, trains dry, and runs *text*."""
    command = [sys.executable, "-c", first + TRAINED + text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_torch_trains_in_a_fork_after_a_dry_run():
    child = """
pid = os.fork()
if not pid:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    os.write(1, repr(model.bias.grad.tolist()).encode())
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert _lines(child) == ["[1.0, 1.0]"]


def test_the_last_dry_run_of_a_process_imports_no_symbols_unless_the_program_does():
    asking = """
def asks():
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.distributed.tensor import Shard
    print(sympy.sqrt(16), ShapeEnv.__name__, Shard(0))

def imported():
    names = "sympy", "torch.fx.experimental.symbolic_shapes", "torch.distributed.tensor"
    return [name for name in names if name in sys.modules]

print(imported())
predict(asks)
print(imported(), {type(sys.modules[name]).__name__ for name in imported()})
"""
    found = _lines(asking, LAST)

    assert found[0] == "[]"
    assert found[1] == "4 ShapeEnv S(0)"
    assert found[2].startswith(
        "['sympy', 'torch.fx.experimental.symbolic_shapes', 'torch.distributed.tensor']"
    )
    assert found[2].endswith("{'module'}")


def test_names_of_the_compiler_and_of_sharded_tensors_import_neither_compiler_nor_symbols():
    """Modules are imported as transformers and torchvision do; what these call comes from the real ones."""
    asking = """
def asks():
    import torch.compiler
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    from torch._dynamo.utils import is_compile_supported
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    @torch.compiler.disable(recursive=False)
    @torch._dynamo.allow_in_graph
    def double(x):
        return x * 2

    light = [type(sys.modules[name]).__name__ != "module" for name in ("sympy", "torch._dynamo")]
    print(Shard(0), Replicate(), isinstance(torch.ones(2), DTensor), double(2), light)
    with TransformGetItemToIndex():
        pass
    print(is_compile_supported("cpu"), torch._dynamo.trace_rules.is_callable_allowed(double))
    print([type(sys.modules[name]).__name__ for name in ("sympy", "torch._dynamo")])

predict(asks)
"""
    found = _lines(asking, LAST)

    assert found[0] == "S(0) R False 4 [True, True]"
    assert found[1] == "True True"
    assert found[2] == "['module', 'module']"


NUMBERS = {
    "free_unbacked_symbols": [(torch.ones(2, 3),), (torch.ones(4, 6)[1:, ::2],), (3,), ([2, (3,)],), (None,)],
    "has_free_unbacked_symbols": [(torch.ones(2, 3),), (3,), ([2, (3,)],), (torch.ones(2).to_sparse(),)],
    "guard_or_false": [(True,), (False,)],
    "guard_or_true": [(True,), (False,)],
    "statically_known_true": [(True,), (False,)],
    "expect_true": [(True,), (False,)],
    "is_nested_int": [(3,), (2.5,)],
    "has_guarding_hint": [(3,), (True,)],
    "guarding_hint_or_throw": [(7,)],
    "guard_int": [(7,)],
    "sym_eq": [(3, 3), (3, 4), ((2, 3), [2, 3]), ((2, 3), (2,)), (torch.Size([2, 3]), (2, 4)), ((), ())],
    "sym_and": [(True,), (True, False), (True, True, True)],
    "sym_or": [(False,), (True, False), (False, False, False)],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_for_numbers_the_light_functions_return_what_torchs_own_return(name: str):
    from torch.fx.experimental import symbolic_shapes

    answers = light_symbols._answers()

    for given in NUMBERS[name]:
        assert answers[name](*given) == getattr(symbolic_shapes, name)(*given), given


def test_every_function_that_answers_is_compared_with_torchs_own():
    assert light_symbols._answers().keys() == NUMBERS.keys() | set(light_symbols._UNUSED)


def test_what_runs_the_program_has_no_analysis_to_import():
    asking = (
        "import sys, vramscope.prediction\n"
        "print([name for name in sys.modules if 'vramscope.analysis' in name])"
    )

    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
