"""Finds the coordinates of this process in the mesh that the program's own parameters are spread over.

Only what a DTensor carries is read: nothing communicates, and no module is imported.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from vramscope.package_data import words

DIMENSIONS = words(__file__, "mesh_of_parameters.tsv", "dimension")


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
