"""What the driver reports is recorded; what it does not report is −1 and noted once."""

from types import SimpleNamespace

import pynvml
import pytest

from vramscope.capture import nvml

GIB = 1 << 30


class Driver:
    """A driver that reports everything, until a test forbids it."""

    def __init__(self, monkeypatch):
        self.pids = {nvml.os.getpid(): GIB}
        self.asked = []
        self.refusals = {}
        for name in ("nvmlInit", "nvmlShutdown"):
            monkeypatch.setattr(pynvml, name, lambda: None)
        for name in (
            "nvmlDeviceGetHandleByUUID",
            "nvmlDeviceGetHandleByPciBusId",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
            "nvmlDeviceGetUtilizationRates",
        ):
            monkeypatch.setattr(pynvml, name, self.answer(name))

    def answer(self, name):
        def call(handle, version=None):
            self.asked.append((name, handle))
            error = self.refusals.get((name, version is not None), self.refusals.get(name))
            if error is not None:
                raise pynvml.NVMLError(error)
            processes = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.pids.items()]
            return {
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(
                    used=(2 if version else 3) * GIB, free=77 * GIB, total=80 * GIB
                ),
                "nvmlDeviceGetComputeRunningProcesses": processes,
                "nvmlDeviceGetGraphicsRunningProcesses": processes[:1],
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37),
            }.get(name, "handle")

        return call


@pytest.fixture
def driver(monkeypatch):
    return Driver(monkeypatch)


def everything(memory):
    return (*memory.memory(), *memory.shares(), memory.utilization())


def test_a_driver_that_tells_all(driver):
    memory = nvml.DeviceMemory("GPU-1", "")

    assert everything(memory) == (2 * GIB, 77 * GIB, 80 * GIB, GIB, 0, 37)
    assert memory.notes == []
    assert driver.asked[0] == ("nvmlDeviceGetHandleByUUID", "GPU-1")


def test_without_a_uuid_the_bus_decides(driver):
    nvml.DeviceMemory("", "00000000:01:00.0")

    assert driver.asked[0] == ("nvmlDeviceGetHandleByPciBusId", "00000000:01:00.0")


def test_an_old_driver_counts_its_reserve(driver):
    driver.refusals["nvmlDeviceGetMemoryInfo", True] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    memory = nvml.DeviceMemory("GPU-1", "")

    assert [memory.memory() for _ in range(2)] == [(3 * GIB, 77 * GIB, 80 * GIB)] * 2
    assert [note.code for note in memory.notes] == ["nvml_memory"]


def test_a_container_hides_the_process(driver):
    driver.pids = {1: GIB}
    memory = nvml.DeviceMemory("GPU-1", "")

    assert [memory.shares() for _ in range(2)] == [(-1, -1)] * 2
    assert [note.code for note in memory.notes] == ["nvml_process"]


def test_a_process_listed_only_once_it_has_a_context_is_in_no_container(driver):
    listed, driver.pids = driver.pids, {}
    memory = nvml.DeviceMemory("GPU-1", "")
    before = memory.shares()
    driver.pids = listed

    assert (before, memory.shares()) == ((-1, -1), (GIB, 0))
    assert memory.notes == []


def test_other_processes_are_summed_and_one_that_also_draws_counts_once(driver):
    driver.pids |= {1: 2 * GIB, 2: 3 * GIB}

    assert nvml.DeviceMemory("GPU-1", "").shares() == (GIB, 5 * GIB)


def test_a_driver_without_the_list_of_those_that_draw(driver):
    driver.refusals["nvmlDeviceGetGraphicsRunningProcesses"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    memory = nvml.DeviceMemory("GPU-1", "")

    assert memory.shares() == (GIB, 0)
    assert memory.notes == []


def test_processes_without_their_memory_are_unknown_not_empty(driver):
    driver.pids = {nvml.os.getpid(): None, 1: None}
    memory = nvml.DeviceMemory("GPU-1", "")

    assert [memory.shares() for _ in range(2)] == [(-1, -1)] * 2
    assert [note.code for note in memory.notes] == ["nvml_process_memory"]


def test_a_slice_is_found_though_torch_calls_it_a_gpu(driver, monkeypatch):
    def handle(uuid):
        if uuid != "MIG-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    memory = nvml.DeviceMemory("GPU-1", "")

    assert memory.memory() == (2 * GIB, 77 * GIB, 80 * GIB)
    assert driver.asked[0][1] == "MIG-1"


def test_a_slice_has_no_utilization(driver):
    driver.refusals["nvmlDeviceGetUtilizationRates"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    memory = nvml.DeviceMemory("MIG-1", "")

    assert everything(memory) == (2 * GIB, 77 * GIB, 80 * GIB, GIB, 0, -1)
    assert memory.notes[0].text == "NVML does not report the utilization: Not Supported"


def test_without_a_driver_all_is_unknown_and_reported_once(monkeypatch):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    memory = nvml.DeviceMemory("GPU-1", "")

    assert [everything(memory) for _ in range(2)] == [(-1,) * 6] * 2
    assert [note.code for note in memory.notes] == ["nvml_device"]
    memory.close()


@pytest.mark.parametrize("used", [81 * GIB, 2**64 - 1, -1])
def test_a_driver_that_reports_more_than_there_is_is_noted_not_recorded(driver, monkeypatch, used):
    info = SimpleNamespace(used=used, free=0, total=80 * GIB)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda *_, **__: info)
    driver.pids[1] = 2**64 - 1
    memory = nvml.DeviceMemory("GPU-1", "")

    assert everything(memory) == (-1, -1, -1, GIB, -1, 37)
    assert "more than there is" in memory.notes[0].text
    assert memory.memory() == nvml.Memory()
    assert len([note for note in memory.notes if "more than there is" in note.text]) == 1
