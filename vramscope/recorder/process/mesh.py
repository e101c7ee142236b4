"""Finds the coordinates of this rank in the job's mesh, where a library of the program knows them.

Only modules that the program has already imported are asked, and only for numbers that they have at hand:
nothing communicates.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vramscope.capture.ranks.mesh_of_parameters import coordinates_in

_MEGATRON = {
    "data": "get_data_parallel_rank",
    "tensor": "get_tensor_model_parallel_rank",
    "pipeline": "get_pipeline_model_parallel_rank",
    "expert": "get_expert_model_parallel_rank",
}
_DEEPSPEED = {
    "data": "get_data_parallel_rank",
    "tensor": "get_model_parallel_rank",
    "pipeline": "get_pipe_parallel_rank",
    "expert": "get_expert_parallel_rank",
}


def mesh_coordinates() -> dict[str, int]:
    """The coordinates of this rank, by dimension: ``data``, ``tensor``, ``pipeline``, ``expert``.

    Empty where no library of the program knows them.
    """
    with suppress(Exception):
        return _of_megatron() or _of_device_mesh() or {}
    return {}


def distributed_rank() -> tuple[int, int] | None:
    """Rank and world size where the program has set up torch.distributed itself; else None."""
    distributed = sys.modules.get("torch.distributed")
    with suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return None


def _of_megatron() -> dict[str, int]:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        return _asked(state, _MEGATRON)
    groups = sys.modules.get("deepspeed.utils.groups")
    mpu = getattr(groups, "mpu", None)
    return _asked(mpu, _DEEPSPEED) if mpu is not None else {}


def _asked(library: Any, functions: dict[str, str]) -> dict[str, int]:
    found = {}
    for dimension, name in functions.items():
        function: Callable[[], int] | None = getattr(library, name, None)
        if function is not None:
            # A dimension that the program does not use raises.
            with suppress(Exception):
                found[dimension] = int(function())
    return found


def _of_device_mesh() -> dict[str, int]:
    """The coordinates in the last DeviceMesh of torch that names its dimensions."""
    module = sys.modules.get("torch.distributed.device_mesh")
    resources = getattr(module, "_mesh_resources", None)
    meshes = [
        *getattr(resources, "mesh_stack", ()),
        *getattr(resources, "child_to_root_mapping", {}).values(),
    ]
    for mesh in reversed(meshes):
        if mesh.mesh_dim_names and mesh.get_coordinate():
            return coordinates_in(mesh)
    return {}
