"""Trains one small network on two ranks in every way that torch has, each way recorded to a run of its own.

Beside each recording it writes what torch's own objects hold at every mark, as bytes by category.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing.reductions import StorageWeakRef

import vramscope

WIDTH, BATCH, N_CHUNKS, STEPS = 64, 32, 4, 2


Note = Callable[[dict[str, int]], None]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, 7)
    )


def blocks(tensors: Iterable[Any]) -> int:
    """Bytes of the blocks of these tensors' storages: the allocator rounds up to 512."""
    found = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    storages = {storage._cdata: storage.nbytes() for storage in found}
    return sum(-(-n_bytes // 512) * 512 for n_bytes in storages.values())


def local(tensors: Iterable[Any]) -> list[Any]:
    return [tensor.to_local() for tensor in tensors if tensor is not None]


def of_fsdp2(model: nn.Module) -> dict[str, int]:
    groups = [module._get_fsdp_state()._fsdp_param_group for module in model.modules()
              if hasattr(module, "_get_fsdp_state")]  # fmt: skip
    parameters = [each for group in groups if group for each in group.fsdp_params]
    return {
        "sharded_parameter": blocks(each._sharded_param_data for each in parameters),
        "unsharded_parameter": blocks(tensor for each in parameters for tensor in each.all_gather_outputs),
        "sharded_gradient": blocks(local(each.sharded_param.grad for each in parameters)),
        "parameter": 0,
        "gradient": 0,
    }


def of_fsdp1(model: nn.Module) -> dict[str, int]:
    flat = [module._handle.flat_param for module in model.modules() if getattr(module, "_handle", None)]
    gradients = [each._saved_grad_shard if hasattr(each, "_saved_grad_shard") else each.grad for each in flat]
    return {
        "sharded_parameter": blocks(each._local_shard for each in flat),
        "unsharded_parameter": blocks(each._full_param_padded for each in flat),
        "sharded_gradient": blocks(gradients),
        "parameter": 0,
    }


def of_tensor_parallel(model: nn.Module) -> dict[str, int]:
    parameters = list(model.parameters())
    divided = [each for each in parameters if isinstance(getattr(each, "placements", [None])[0], Shard)]
    whole = [each for each in parameters if all(each is not other for other in divided)]
    return {
        "sharded_parameter": blocks(local(divided)),
        "parameter": blocks(each.to_local() if hasattr(each, "to_local") else each for each in whole),
        "sharded_gradient": blocks(local(each.grad for each in divided)),
        "unsharded_parameter": 0,
    }


def of_ddp(model: nn.Module) -> dict[str, int]:
    parameters = list(model.parameters())
    # One bucket: its default size is 25 MiB. It is made when the model is wrapped.
    bucket = torch.empty(sum(each.numel() for each in parameters))
    return {
        "parameter": blocks(parameters),
        "gradient": blocks(each.grad for each in parameters),
        "communication": blocks([bucket]),
        "sharded_parameter": 0,
        "unsharded_parameter": 0,
        "sharded_gradient": 0,
    }


def of_pipeline(stage: PipelineStage, outputs: list[StorageWeakRef]) -> dict[str, int]:
    received = [info.buffer for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
                for info in infos if isinstance(getattr(info, "buffer", None), torch.Tensor)]  # fmt: skip
    found = {"communication": blocks(received), "parameter": blocks(stage.submod.parameters())}
    if stage.is_first:  # it ends with a ReLU, which keeps what it returns until the micro-batch's backward
        found["activation"] = sum(not each.expired() for each in outputs) * BATCH // N_CHUNKS * 4 * WIDTH * 4
    return found


def train(model: nn.Module, note: Callable[[], None]) -> None:
    def before(*_: Any) -> None:
        note()  # while FSDP has the layer's parameters gathered

    def after(_: Any, __: Any, out: torch.Tensor) -> None:
        out.register_hook(lambda _: note())

    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(before)
        if isinstance(layer, nn.ReLU):
            layer.register_forward_hook(after)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        # Two backwards: the second finds what the first left.
        for _ in range(2):
            model(torch.randn(BATCH, WIDTH)).pow(2).mean().backward()
        note()
        optimizer.step()
        optimizer.zero_grad()
        note()


def fully_sharded() -> nn.Module:
    model, mesh = network(), init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def kept_unsharded() -> nn.Module:
    """The second forward of two finds the parameters gathered."""
    model, mesh = network(), init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model.set_reshard_after_backward(False)
    return model


def flat(use_orig_params: bool) -> nn.Module:
    policy = ModuleWrapPolicy({nn.Linear})
    return FullyShardedDataParallel(
        network(), auto_wrap_policy=policy, use_orig_params=use_orig_params, device_id=torch.device("cpu")
    )


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    return parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


WAYS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], dict[str, int]]]] = {
    "ddp": (lambda: nn.parallel.DistributedDataParallel(network()), of_ddp),
    "fsdp2": (fully_sharded, of_fsdp2),
    "fsdp2 kept": (kept_unsharded, of_fsdp2),
    "fsdp1": (lambda: flat(False), of_fsdp1),
    "fsdp1 orig": (lambda: flat(True), of_fsdp1),
    "tensor parallel": (tensor_parallel, of_tensor_parallel),
}


def _note_truth(note: Note, truth: Callable[[nn.Module], dict[str, int]], model: nn.Module) -> None:
    note(truth(model))


def main(directory: Path, rank: int) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(directory / "store"), 2), rank=rank, world_size=2
    )
    for name, (make, truth) in WAYS.items():
        with recorded(directory, name, rank) as note:
            model = make()
            train(model, partial(_note_truth, note, truth, model))
            del model
            gc.collect()
    pipeline(directory, rank)
    dist.destroy_process_group()


class recorded:  # noqa: N801 -- used as a function
    def __init__(self, directory: Path, name: str, rank: int) -> None:
        self.recording = vramscope.record(directory / name, device="simulated", quiet=True)
        self.path = directory / f"{name}.{rank}.json"
        self.truths: list[dict[str, int]] = []

    def __enter__(self) -> Note:
        recorder = self.recording.__enter__()

        def note(truth: dict[str, int]) -> None:
            recorder.mark(str(len(self.truths)))
            self.truths.append(truth)

        return note

    def __exit__(self, *error: Any) -> None:
        self.recording.__exit__(*error)
        self.path.write_text(json.dumps(self.truths))


def pipeline(directory: Path, rank: int) -> None:
    model = network()
    part = nn.Sequential(model[0], model[1]) if rank == 0 else nn.Sequential(model[2], model[3])
    with recorded(directory, "pipeline", rank) as note:
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        outputs: list[StorageWeakRef] = []

        def before(*_: Any) -> None:
            note(of_pipeline(stage, outputs))

        def after(_: Any, __: Any, out: torch.Tensor) -> None:
            outputs.append(StorageWeakRef(out.untyped_storage()))

        part.register_forward_pre_hook(before)
        part.register_forward_hook(after)
        schedule = Schedule1F1B(stage, N_CHUNKS, loss_fn=lambda out, _: out.pow(2).mean())
        optimizer = torch.optim.SGD(part.parameters())
        for _ in range(STEPS):
            given = [torch.randn(BATCH, WIDTH)] if rank == 0 else []
            schedule.step(*given, target=torch.empty(BATCH, 7))
            note(of_pipeline(stage, outputs))
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
