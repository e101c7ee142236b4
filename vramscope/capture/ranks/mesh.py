"""Finds the coordinates of this process in the mesh of its job, where a library or the parameters know them.

Only modules that the program has already imported are asked, for numbers that they have at hand, and only
what a DTensor carries is read: nothing communicates, and no module is imported.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from vramscope.package_data import words

DIMENSIONS = words(__file__, "mesh.tsv", "dimension")


def mesh_of_parameters(tensors: Iterable[Any]) -> dict[str, int]:
    """The coordinates of this process, by dimension: ``data``, ``tensor``, ``pipeline``, ``expert``.

    Empty where none of *tensors* is a DTensor, or where its mesh does not name its dimensions.
    """
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if dtensor is None:
        return {}
    # A mesh is private to torch but for its names, and other versions may have other attributes.
    with suppress(Exception):
        mesh = next((tensor.device_mesh for tensor in tensors if isinstance(tensor, dtensor)), None)
        if mesh is not None:
            return coordinates_in(_root(mesh)) or coordinates_in(mesh)
    return {}


def _root(mesh: Any) -> Any:
    """The mesh that *mesh* is a part of: that of all dimensions of the job."""
    root = getattr(mesh, "_get_root_mesh", None)
    if root is not None:
        return root()
    resources = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    of_resources = getattr(resources, "get_root_mesh", None)
    return mesh if of_resources is None else of_resources(mesh)


def coordinates_in(mesh: Any) -> dict[str, int]:
    """The coordinates of this process in one mesh.

    Dimensions of one kind, such as those of replicas and of shards, are counted as one: the last varies
    fastest.
    """
    names, coordinates = mesh.mesh_dim_names, mesh.get_coordinate()
    found: dict[str, int] = {}
    if names and coordinates:
        for name, at, size in zip(names, coordinates, mesh.shape, strict=True):
            kind = DIMENSIONS.get(name)
            if kind is not None:
                found[kind] = found.get(kind, 0) * int(size) + int(at)
    return found


_MEGATRON = words(__file__, "mesh.tsv", "megatron")
_DEEPSPEED = words(__file__, "mesh.tsv", "deepspeed")


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
