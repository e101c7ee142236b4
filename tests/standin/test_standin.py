"""The stand-in itself: the genuine allocator runs in it, and NVML's figures move with every byte."""

import textwrap
from itertools import pairwise

import pytest
from standin_fixtures import HAS_WORKSPACE_PER_PRODUCT

pytestmark = pytest.mark.standin

MIB = 1 << 20
CONTEXT = 500 * MIB
RESERVE = 600 * MIB

NVML = """
import ctypes
import os
import pynvml
from standin import Board
MIB = 1 << 20
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
def used(device=handle):
    return pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2).used
def outcome(ask):
    try:
        return ask()
    except pynvml.NVMLError as error:
        return type(error).__name__
"""


def nvml(script: str) -> str:
    """*script* with the device's handle, what NVML counts and how a question to it ends at hand."""
    return NVML + textwrap.dedent(script)


def test_torch_sees_one_device_and_computes_on_it(run_standin):
    answer = run_standin(
        """
        model = torch.nn.Linear(64, 64).cuda()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        answer = [torch.cuda.is_available(), torch.cuda.device_count(), model.weight.grad.device.type]
        """
    )
    assert answer == [True, 1, "cuda"]


def test_what_torch_reserves_and_the_context_is_what_nvml_counts(run_standin):
    answer = run_standin(
        nvml(
            """
            before = used()
            kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (100, 3 * MIB, 78 * MIB)]
            answer = [before, torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), used()]
            """
        )
    )
    before, allocated, reserved, used = answer
    assert before == 0
    assert allocated == 512 + 81 * MIB
    assert used == CONTEXT + reserved
    assert reserved == (2 + 20 + 78) * MIB


def test_memory_outside_torch_moves_nvml_by_exactly_its_size_and_back(run_standin):
    answer = run_standin(
        nvml(
            """
            torch.empty(1, device="cuda")
            loaded = [line.split()[-1] for line in open("/proc/self/maps")]
            cuda = ctypes.CDLL(next(path for path in loaded if "libcudart" in path))
            pointer = ctypes.c_void_p()
            levels, free = [used()], [torch.cuda.mem_get_info()[0]]
            assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 * MIB)) == 0
            levels.append(used())
            free.append(torch.cuda.mem_get_info()[0])
            assert cuda.cudaFree(pointer) == 0
            levels.append(used())
            answer = [levels, free, torch.cuda.memory_reserved()]
            """
        )
    )
    levels, free, reserved = answer
    assert levels == [CONTEXT + reserved, CONTEXT + reserved + 512 * MIB, CONTEXT + reserved]
    assert free[0] - free[1] == 512 * MIB


def test_version_1_of_the_memory_query_counts_the_drivers_reserve_as_used(run_standin):
    answer = run_standin(
        nvml(
            """
            kept = torch.empty(10 * MIB, device="cuda")
            first = pynvml.nvmlDeviceGetMemoryInfo(handle)
            second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            answer = [
                [first.total, first.used, first.free],
                [second.total, second.used, second.free, second.reserved],
                torch.cuda.mem_get_info()[1],
            ]
            """
        ),
        STANDIN_TOTAL_MIB=4000,
    )
    (total, used, free), (total_2, used_2, free_2, reserved), cuda_total = answer
    assert total == total_2 == cuda_total + RESERVE
    assert cuda_total == 4000 * MIB
    assert reserved == RESERVE
    assert used == used_2 + reserved
    assert free == free_2 == cuda_total - used_2


def test_a_made_up_process_of_1_gib_shows_up_and_goes_while_the_script_runs(run_standin):
    answer = run_standin(
        nvml(
            """
            torch.empty(1, device="cuda")
            board = Board()
            def seen():
                found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                return {"us" if each.pid == os.getpid() else each.pid: each.usedGpuMemory for each in found}
            answer = [[used(), seen()]]
            board.add_process(1024 * MIB, pid=77)
            answer.append([used(), seen()])
            board.end_process(pid=77)
            answer.append([used(), seen()])
            """
        )
    )
    ours = CONTEXT + 2 * MIB
    assert answer[0] == answer[2] == [ours, {"us": ours}]
    assert answer[1] == [ours + 1024 * MIB, {"us": ours, "77": 1024 * MIB}]


SECOND = """
import subprocess
import sys
script = "import torch; x = torch.empty(1 << 28, device='cuda'); print('ready', flush=True); input()"
second = subprocess.Popen(
    [sys.executable, "-W", "ignore", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
assert second.stdout.readline() == "ready\\n"
"""


def test_a_second_real_process_shows_up_and_is_gone_when_it_is_killed(run_standin, board):
    answer = run_standin(
        nvml(
            SECOND
            + """
torch.empty(1, device="cuda")
answer = [used(), [each.pid == second.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]]
second.kill()
second.wait()
answer += [used(), torch.cuda.memory_reserved()]
"""
        ),
        board=board,
    )
    both, who, alone, reserved = answer
    assert sorted(who) == [False, True]
    assert alone == CONTEXT + reserved
    assert both - alone == CONTEXT + 1024 * MIB


def test_a_board_shows_from_outside_what_a_script_holds(run_standin, board):
    board.add_process(100 * MIB)
    seen_inside = run_standin(nvml("answer = used()"), board=board)
    assert seen_inside == 100 * MIB
    assert board.used() == 100 * MIB


def test_expandable_segments_move_nvml_as_they_grow_and_shrink(run_standin):
    answer = run_standin(
        nvml(
            """
            levels = []
            kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
            levels.append([used(), torch.cuda.memory_reserved()])
            del kept[1:]
            torch.cuda.empty_cache()
            levels.append([used(), torch.cuda.memory_reserved()])
            expandable = [each["is_expandable"] for each in torch.cuda.memory_snapshot()]
            answer = [levels, expandable]
            """
        ),
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    levels, expandable = answer
    assert expandable
    assert all(expandable)
    assert [used - reserved for used, reserved in levels] == [CONTEXT, CONTEXT]
    assert [reserved for _, reserved in levels] == [120 * MIB, 40 * MIB]


def test_memory_ends_at_the_capacity_and_other_processes_count(run_standin):
    answer = run_standin(
        nvml(
            """
            def fits(n_mib):
                torch.cuda.empty_cache()
                try:
                    return bool(torch.empty(n_mib * MIB, dtype=torch.uint8, device="cuda").numel())
                except torch.cuda.OutOfMemoryError as error:
                    return "out of memory" in str(error) and "MiB" in str(error) and "error"
            answer = [fits(400), fits(402)]
            Board().add_process(100 * MIB)
            answer += [fits(300), fits(302)]
            """
        ),
        STANDIN_TOTAL_MIB=900,
    )
    assert answer == [True, "error", True, "error"]


@pytest.mark.parametrize(("delay", "active"), [(0, 0), (1000, 1)])
def test_an_event_that_is_not_ready_holds_a_block_back(run_standin, delay, active):
    answer = run_standin(
        """
        side = torch.cuda.Stream()
        tensor = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        tensor.record_stream(side)
        del tensor
        other = torch.empty(512, dtype=torch.uint8, device="cuda")
        stats = torch.cuda.memory_stats()
        answer = [stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]]
        """,
        STANDIN_EVENT_DELAY=delay,
    )
    assert answer == [512, 512 + active * (4 << 20)]


ADDRESSES = """
def addresses():
    kept = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]
    return [tensor.data_ptr() for tensor in kept]
first = addresses()
torch.cuda.empty_cache()
answer = [first, addresses()]
"""


@pytest.mark.parametrize("mode", ["up", "down", "random", "reuse"])
def test_addresses_go_the_way_that_is_asked_for_and_never_overlap(run_standin, mode):
    first, second = run_standin(ADDRESSES, STANDIN_ADDRESSES=mode)
    ordered = sorted(first)
    assert all(high - low >= 30 * MIB for low, high in pairwise(ordered))
    assert (first == ordered) == (mode in ("up", "reuse"))
    assert (first == ordered[::-1]) == (mode == "down")
    assert (set(first) == set(second)) == (mode == "reuse")


DEVICES = """
def uuid(device):
    return "GPU-" + str(torch.cuda.get_device_properties(device).uuid)
def name_of(index):
    return pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
"""


def test_several_devices_have_uuids_of_their_own_that_cuda_and_nvml_agree_on(run_standin):
    answer = run_standin(
        nvml(DEVICES)
        + """
kept = [torch.empty(10 * n * MIB, dtype=torch.uint8, device=f"cuda:{n}") for n in (1, 2)]
uuids = [uuid(n) for n in range(3)]
answer = [uuids, [name_of(n) for n in range(pynvml.nvmlDeviceGetCount())],
          [used(pynvml.nvmlDeviceGetHandleByUUID(each)) for each in uuids]]
""",
        STANDIN_DEVICES=3,
    )
    of_cuda, of_nvml, used = answer
    assert len(set(of_cuda)) == 3
    assert of_cuda == of_nvml
    assert used == [0, CONTEXT + 10 * MIB, CONTEXT + 20 * MIB]


def test_cuda_and_nvml_may_number_the_devices_differently(run_standin):
    answer = run_standin(
        nvml(DEVICES)
        + """
kept = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
bus_id = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid(0))).busId
by_bus = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
answer = [torch.cuda.device_count(), uuid(0), [name_of(n) for n in range(3)], used(by_bus)]
""",
        STANDIN_DEVICES=3,
        STANDIN_NVML_REVERSED=1,
        CUDA_VISIBLE_DEVICES="2",
    )
    n_devices, uuid, of_nvml, used = answer
    assert n_devices == 1
    assert of_nvml.index(uuid) == 0
    assert used == CONTEXT + 30 * MIB


def test_a_device_nobody_used_holds_no_context(run_standin):
    script = (
        nvml(DEVICES)
        + "torch.empty(1, device='cuda:1')\ntorch.cuda.synchronize(1)\ntorch.cuda.empty_cache()\n"
    )
    answer = run_standin(
        script + "answer = [used(pynvml.nvmlDeviceGetHandleByUUID(uuid(n))) for n in (0, 1)]",
        STANDIN_DEVICES=2,
    )
    assert answer == [0, CONTEXT]


def test_nvml_refuses_what_a_test_wants_refused_and_only_there(run_standin):
    answer = run_standin(
        nvml(
            """
            import standin
            board = Board()
            second = pynvml.nvmlDeviceGetHandleByIndex(1)
            answer = {"mig": outcome(lambda: pynvml.nvmlDeviceGetMigMode(handle))}
            board.answer("memory_v2", standin.FUNCTION_NOT_FOUND)
            answer["version 2"] = outcome(used)
            answer["version 1"] = outcome(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total > 0)
            board.answer("processes", standin.NO_PERMISSION)
            answer["processes"] = outcome(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
            board.answer("utilization", standin.NOT_SUPPORTED)
            answer["utilization"] = outcome(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
            board.lose()
            answer["lost"] = outcome(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
            answer["the other"] = outcome(lambda: used(second))
            """
        ),
        STANDIN_DEVICES=2,
    )
    assert answer == {
        "mig": "NVMLError_NotSupported",
        "version 2": "NVMLError_FunctionNotFound",
        "version 1": True,
        "processes": "NVMLError_NoPermission",
        "utilization": "NVMLError_NotSupported",
        "lost": "NVMLError_GpuIsLost",
        "the other": 0,
    }


@pytest.mark.parametrize(
    ("view", "listed"),
    [
        ("all", [[True, True]]),
        ("no bytes", [[True, False]]),
        ("host pids", [[False, True]]),
        ("nothing", []),
    ],
)
def test_nvml_shows_processes_as_containers_and_windows_do(run_standin, view, listed):
    answer = run_standin(
        nvml(
            f"""
            torch.empty(1, device="cuda")
            Board().show_processes({view!r})
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            answer = [[each.pid == os.getpid(), each.usedGpuMemory is not None] for each in processes]
            """
        )
    )
    assert answer == listed


def test_the_snapshot_adds_up_to_memory_stats_after_training(run_standin):
    answer = run_standin(
        """
        import random
        draw = random.Random(3)
        model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Linear(700, 300)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        kept = []
        for _ in range(20):
            inputs = torch.zeros(draw.randint(1, 900), 300, device="cuda")
            kept.append(torch.empty(draw.randint(1, 9 << 20), dtype=torch.uint8, device="cuda"))
            kept = kept[-5:]
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        stats = torch.cuda.memory_stats()
        segments = torch.cuda.memory_snapshot()
        keys = ("total_size", "allocated_size", "active_size")
        sums = [sum(segment[key] for segment in segments) for key in keys]
        names = ("reserved_bytes", "allocated_bytes", "active_bytes")
        answer = [sums, [stats[f"{name}.all.current"] for name in names]]
        """
    )
    sums, stats = answer
    assert sums == stats
    assert stats[1] > 4 * (300 * 700) * 2 * 3


def test_every_thread_that_multiplies_has_a_workspace_of_its_own(run_standin):
    """cuBLAS gives each thread a handle; until 2.14 torch keeps 32 MiB (Hopper) for each."""
    answer = run_standin(
        """
        import threading
        def workspaces():
            blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
            return sum(block["state"] == "active_allocated" and block["size"] == 32 << 20 for block in blocks)
        model, x = torch.nn.Linear(64, 64).cuda(), torch.ones(8, 64, device="cuda")
        answer = [workspaces()]
        loss = model(x).sum()
        answer.append(workspaces())
        loss.backward()
        answer.append(workspaces())
        model(x).sum().backward()
        answer.append(workspaces())
        another = threading.Thread(target=lambda: model(x))
        another.start()
        another.join()
        answer.append(workspaces())
        """
    )
    assert answer == ([0] * 5 if HAS_WORKSPACE_PER_PRODUCT else [0, 1, 2, 2, 3])


def test_a_fork_has_the_devices_of_its_parent(run_standin):
    answer = run_standin(
        nvml(
            """
            kept = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writer, str(used()).encode())
                os._exit(0)
            os.waitpid(child, 0)
            answer = [int(os.read(reader, 99)), used()]
            """
        )
    )
    assert answer == [CONTEXT + 20 * MIB, CONTEXT + 20 * MIB]


def test_a_captured_graph_keeps_its_memory_in_a_pool_of_its_own(run_standin):
    answer = run_standin(
        """
        inputs = torch.ones(64, 64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = inputs @ inputs
        graph.replay()
        pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
        answer = [list(pool) for pool in pools]
        """
    )
    assert [0, 0] in answer
    assert len(answer) >= 2


def test_vramscope_runs_in_it_with_its_own_packages(run_standin):
    answer = run_standin(
        "import vramscope, numpy; answer = [vramscope.__version__, torch.version.cuda is not None]"
    )
    assert answer[1] is True
