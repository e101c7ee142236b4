"""Wrappers of functions: one records every call, one keeps torch.compile away."""

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def recorded(block: AbstractContextManager[Any], function: Function) -> Function:
    """Wrap *function* so that each call runs inside *block*.

    For coroutines and generators the block lasts until they end, not only until the call returns.
    """
    wrapper: Any
    if inspect.iscoroutinefunction(function):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with block:
                return await function(*args, **kwargs)

    elif inspect.isasyncgenfunction(function):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with block:
                async for each in function(*args, **kwargs):
                    yield each

    elif inspect.isgeneratorfunction(function):

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with block:
                return (yield from function(*args, **kwargs))

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with block:
                return function(*args, **kwargs)

    return cast("Function", functools.wraps(function)(wrapper))


def untraced(method: Function) -> Function:
    """Wrap *method* so that ``torch.compile`` does not compile it into a function that calls it."""

    @functools.wraps(method)
    def outside(*args: Any, **kwargs: Any) -> Any:
        # Not imported here: as long as the program has not imported it, nothing is compiled.
        disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        return method(*args, **kwargs) if disable is None else disable(method)(*args, **kwargs)

    return cast("Function", outside)
