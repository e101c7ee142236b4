"""Changes to a program from outside while it runs dry: autocast, checkpoints, optimizers, adapters, shards.

The program itself stays as it is. Each change does what its author would write: ``autocast`` around forward
and loss, ``checkpoint`` around the blocks of a model, another class of optimizer, an optimizer step only
after several backward passes.
"""

import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from vramscope.capture.undisturbed.tracked import tracked_objects
from vramscope.prediction.dry.sharding import Sharding
from vramscope.prediction.dry.shim.patches import Patches
from vramscope.prediction.trial import DryChange

_CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
_FEWEST_STEPS = 2
"""Gradients and optimizer states are there together from the second step on."""
_REPLACED = (torch.optim.Adam, torch.optim.AdamW)
"""Optimizers with two moments, for which another one may stand."""


class Changed:
    """What became of a change: whether the program gave it anything to do."""

    def __init__(self) -> None:
        self.n_blocks = 0
        """Blocks that could be checkpointed."""
        self.n_forwards = 0
        """Forwards that autocast was put around."""
        self.has_own_autocast = False
        """Whether the program uses autocast itself."""
        self.n_optimizers = 0
        """Optimizers that were replaced."""
        self.n_steps = 0
        """Steps of optimizers that accumulate."""
        self.n_adapted = 0
        """Linear layers that have an adapter."""
        self.sharding: Sharding | None = None
        """What became of the models that are to be sharded."""

    def problem(self, change: DryChange) -> str:
        """Return why the change has no effect on this program; '' if it has one."""
        unsharded = "" if self.sharding is None else self.sharding.problem()
        accumulates_late = change.accumulated > 1 and self.n_steps < _FEWEST_STEPS
        why = (
            (change.is_autocast and self.has_own_autocast, "the program uses autocast already"),
            (change.is_autocast and not self.n_forwards, "no module was called"),
            (
                change.checkpointed is not None and not self.n_blocks,
                "no model that runs with gradients has repeated blocks in a ModuleList or Sequential",
            ),
            (change.optimizer and not self.n_optimizers, "the program has no Adam or AdamW of torch"),
            (
                change.adapter_rank and not self.n_adapted,
                "no optimizer of a single process trains linear layers in 32 bits",
            ),
            (unsharded, unsharded),
            (
                accumulates_late,
                "the program ends too early: the peak comes when it accumulates for its second step",
            ),
        )
        return next((text for is_so, text in why if is_so), "")


@contextmanager
def changed(change: DryChange) -> Iterator[Changed]:
    """Apply *change* to everything that runs inside; torch is as before afterwards."""
    result, patches = Changed(), Patches()
    with ExitStack() as leave:
        leave.callback(patches.undo)
        if change.optimizer:
            _replace_optimizers(change.optimizer, result, patches)
        if change.adapter_rank:
            _adapt(change.adapter_rank, result, patches)
        if change.n_cards > 1:
            result.sharding = Sharding(change.n_cards, blocks_of, patches)
        if change.accumulated > 1:
            _accumulate(change.accumulated, result, patches)
        if change.checkpointed is not None:
            leave.callback(_Checkpoints(change.checkpointed, result).begin())
        if change.is_autocast:
            leave.callback(_AutocastHooks(result, patches).begin())
        yield result


class _AutocastHooks:
    """Enters autocast at the outermost forward, and leaves it where backward begins."""

    def __init__(self, result: Changed, patches: Patches) -> None:
        self._result = result
        self._patches = patches
        self._context: Any = None
        self._depth = 0

    def begin(self) -> Callable[[], None]:
        before = torch.nn.modules.module.register_module_forward_pre_hook(self._before)
        after = torch.nn.modules.module.register_module_forward_hook(self._after, always_call=True)
        for name in ("backward", "grad"):
            self._patches.set(torch.autograd, name, self._leaving(getattr(torch.autograd, name)))

        def end() -> None:
            before.remove()
            after.remove()
            self._leave()

        return end

    def _before(self, *_: Any) -> None:
        self._depth += 1
        # A recompute in backward has the autocast that checkpoint() gives back to it.
        is_in_backward = torch._C._current_graph_task_id() != -1
        if self._depth > 1 or self._context is not None or is_in_backward:
            return
        if torch.is_autocast_enabled("cuda"):
            self._result.has_own_autocast = True
            return
        self._result.n_forwards += 1
        self._context = torch.autocast("cuda", dtype=torch.bfloat16)
        self._context.__enter__()

    def _after(self, *_: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if not self._depth and not torch.is_grad_enabled():
            self._leave()  # an evaluation has no backward

    def _leaving(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def begins(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            return inner(*args, **kwargs)

        return begins

    def _leave(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)


class _Checkpoints:
    """Finds the blocks of each model at its first training forward, and checkpoints the first of them."""

    def __init__(self, count: int, result: Changed) -> None:
        self._left = count
        self._result = result
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def begin(self) -> Callable[[], None]:
        hook = torch.nn.modules.module.register_module_forward_pre_hook(self._before)
        return hook.remove

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        if module in self._known or not torch.is_grad_enabled():
            return
        self._known.update(module.modules())
        for block in blocks_of(module):
            self._result.n_blocks += 1
            if self._left:
                self._left -= 1
                # A block's own forward: its hooks run once, as around a checkpoint that its caller writes.
                block.forward = partial(_recomputed, block.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def blocks_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the outermost blocks that a model repeats, in order; a block contains modules of its own."""
    repeated = set(_repeated(module)) if isinstance(module, _CONTAINERS) else set()
    for child in module.children():
        if type(child) in repeated:
            yield child
        else:
            yield from blocks_of(child)


def _repeated(container: torch.nn.Module) -> Iterator[type]:
    kinds = Counter(type(each) for each in container.children() if _is_block(each))
    yield from (kind for kind, count in kinds.items() if count > 1)


def _is_block(module: torch.nn.Module) -> bool:
    has_forward = type(module).forward is not torch.nn.ModuleList.forward
    return (
        has_forward and next(module.children(), None) is not None and any(True for _ in module.parameters())
    )


def _replace_optimizers(kind: str, result: Changed, patches: Patches) -> None:
    def followed(cls: type, inner: Callable[..., None]) -> Callable[..., None]:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            inner(optimizer, *args, **kwargs)
            if type(optimizer) is cls:
                result.n_optimizers += 1
                _REPLACE[kind](optimizer)

        return init

    for cls in _REPLACED:
        patches.set(cls, "__init__", followed(cls, cls.__init__))


def _to_sgd(optimizer: Any) -> None:
    like = torch.optim.SGD([torch.zeros(1)], lr=1e-3, momentum=0.9)
    optimizer.__class__ = torch.optim.SGD
    optimizer.defaults = dict(like.defaults)
    for group in optimizer.param_groups:
        kept = {"params": group["params"], "lr": group["lr"]}
        group.clear()
        group.update(like.defaults | kept)


def _with_kernels(fused: bool, optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = fused or None, False
    optimizer._step_supports_amp_scaling = fused


class _InEightBits(torch.optim.Optimizer):
    """Takes the memory of bitsandbytes' ``Adam8bit`` and ``AdamW8bit``, read from version 0.50.2.

    Two moments of a byte per element with a scale for each block, in 32 bits for a small parameter. The
    kernel updates them in place and allocates nothing.
    """

    SMALLEST, BLOCK, CODES = 4096, 256, 256

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._state_of(parameter)
        return loss

    def _state_of(self, parameter: Any) -> dict[str, Any]:
        if parameter.numel() < self.SMALLEST:
            return {f"state{at}": torch.zeros_like(parameter, dtype=torch.float32) for at in (1, 2)}
        zeros = partial(torch.zeros, dtype=torch.float32, device=parameter.device)
        shared = next((state for state in self.state.values() if "qmap1" in state), None)
        n_blocks = -(-parameter.numel() // self.BLOCK)
        return {  # one pair of tables for all parameters
            **{name: zeros(self.CODES) if shared is None else shared[name] for name in ("qmap1", "qmap2")},
            **{f"state{at}": torch.zeros_like(parameter, dtype=torch.uint8) for at in (1, 2)},
            **{f"absmax{at}": zeros(n_blocks) for at in (1, 2)},
        }


def _to_8_bits(optimizer: Any) -> None:
    _InEightBits([torch.zeros(1)], {})  # torch wraps the step of a class when it makes the first of it
    optimizer.__class__ = _InEightBits


_REPLACE: dict[str, Callable[[Any], None]] = {
    "momentum": _to_sgd,
    "fused": partial(_with_kernels, True),
    "loop": partial(_with_kernels, False),
    "8bit": _to_8_bits,
}


def _adapt(rank: int, result: Changed, patches: Patches) -> None:
    """Freeze what an optimizer is given, and give it adapters of the linear layers instead."""
    inner = torch.optim.Optimizer.__init__

    def init(optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        groups = list(params)
        given = [
            each for group in groups for each in (group["params"] if isinstance(group, dict) else [group])
        ]
        adapters = list(_adapters(given, rank))
        result.n_adapted += len(adapters)
        if adapters:
            for each in given:
                each.requires_grad_(False)
            groups = [parameter for adapter in adapters for parameter in adapter.parameters()]
        inner(optimizer, groups, *args, **kwargs)

    patches.set(torch.optim.Optimizer, "__init__", init)


def _adapters(given: list[Any], rank: int) -> Iterator[torch.nn.Module]:
    """Attach an adapter to each linear layer whose weight is *given*, as peft does without dropout."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return  # DDP and FSDP have taken the parameters already
    layers = {
        id(each.weight): each
        for each in tracked_objects(lambda kind: kind is torch.nn.Linear)
        if each.weight.dtype == torch.float32
    }
    for layer in [layers[id(weight)] for weight in given if id(weight) in layers]:
        adapter = torch.nn.Sequential(
            torch.nn.Linear(layer.in_features, rank, bias=False, device=layer.weight.device),
            torch.nn.Linear(rank, layer.out_features, bias=False, device=layer.weight.device),
        )
        layer.add_module("adapter", adapter)
        layer.register_forward_hook(_with_adapter, with_kwargs=True)
        yield adapter


def _with_adapter(layer: Any, args: Any, kwargs: Any, out: Any) -> Any:
    given = args[0] if args else kwargs["input"]
    return out + layer.adapter(given) * 2.0  # peft's scaling, lora_alpha / r


def _accumulate(count: int, result: Changed, patches: Patches) -> None:
    """Make each optimizer step, and gradients vanish, only at every *count*-th call of ``step()``."""
    calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    inner = torch.optim.Optimizer.__init__

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[self] += 1
        if calls[self] % count:
            return None
        result.n_steps += 1
        return type(self).step(self, *args, **kwargs)

    def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        inner(optimizer, *args, **kwargs)
        calls[optimizer] = 0
        # A bound method, as schedulers of the learning rate expect.
        optimizer.step = types.MethodType(step, optimizer)

    def unless_between(inner: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
            if not any(n % count for n in calls.values()):
                inner(self, *args, **kwargs)

        return zero_grad

    patches.set(torch.optim.Optimizer, "__init__", init)
    for home in (torch.optim.Optimizer, torch.nn.Module):
        patches.set(home, "zero_grad", unless_between(home.zero_grad))
