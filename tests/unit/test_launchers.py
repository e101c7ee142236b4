"""The rank of a process is found from what each launcher sets, as its documentation lists it."""

import sys
from types import SimpleNamespace

import pytest

from vramscope.capture.ranks.mesh import distributed_rank, mesh_coordinates
from vramscope.recorder.process.launchers import Launch, launch_of, shared_job

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "job-17",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "43111",
}
SLURM = {
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMIX_NAMESPACE": "prterun-node0-77@1",
}
DEEPSPEED = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "MASTER_ADDR": "n", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "truth"),
    [
        ({}, Launch()),
        (TORCHRUN, Launch(5, 8, 1, "torchrun", "job-17", 2)),
        (TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "no"}, Launch(5, 8, 1, "accelerate", "job-17", 2)),
        (SLURM, Launch(9, 16, 1, "slurm", "812.0", 0)),
        (SLURM | TORCHRUN, Launch(5, 8, 1, "torchrun", "job-17", 2)),
        # A batch script runs before srun: it is no task.
        ({name: text for name, text in SLURM.items() if name != "SLURM_STEP_ID"}, Launch()),
        # mpirun inside of a step of SLURM starts the ranks.
        (OPEN_MPI | SLURM, Launch(3, 4, 3, "mpi", "prterun-node0-77@1", 0)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_ID": "x"}, Launch(1, 2, -1, "mpi", "x", 0)),
        ({"RANK": "3"}, Launch(3, 1, -1, "env")),
        # Nonsense is none.
        ({"RANK": "8", "WORLD_SIZE": "8"}, Launch()),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, Launch()),
        ({"RANK": "one", "WORLD_SIZE": "8"}, Launch()),
    ],
)
def test_the_rank_is_what_the_launcher_says(environ, truth):
    assert launch_of(environ) == truth


@pytest.mark.parametrize(
    ("mark", "name"), [({}, "env"), ({"RAY_JOB_ID": "01"}, "ray"), ({"DS_ENV_FILE": "x"}, "deepspeed")]
)
def test_programs_that_set_the_variables_of_torch_are_distinguished(mark, name):
    found = launch_of(DEEPSPEED | mark)

    assert found[:4] == (2, 4, 2, name)


def test_the_default_id_of_torchrun_is_no_job():
    found = launch_of(TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"})

    assert found.job != "none"
    # What is known on this host alone names no run that other hosts would have to find.
    assert shared_job(found) == ""


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("job-17", "job-17"),
        ("812.0", "812.0"),
        ("a/../b c", "a-..-b-c"),
        ("f2433cf6-6bdd-43b4-994a-f0b98164bd02", ""),
    ],
)
def test_a_job_names_a_run_without_leaving_its_directory(job, name):
    assert shared_job(Launch(job=job)) == name


class Megatron(SimpleNamespace):
    """What ``megatron.core.parallel_state`` offers; expert parallelism is not set up."""

    def get_expert_model_parallel_rank(self):
        raise AssertionError("expert parallel group is not initialized")


def test_the_mesh_of_megatron_is_read(monkeypatch):
    state = Megatron(
        model_parallel_is_initialized=lambda: True,
        get_data_parallel_rank=lambda: 1,
        get_tensor_model_parallel_rank=lambda: 0,
        get_pipeline_model_parallel_rank=lambda: 3,
    )
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)

    assert mesh_coordinates() == {"data": 1, "tensor": 0, "pipeline": 3}


def test_a_library_that_fails_tells_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", object())

    assert mesh_coordinates() == {}


def test_the_rank_of_a_program_that_set_up_torch_itself_is_read(monkeypatch):
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 6, get_world_size=lambda: 7
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)

    assert distributed_rank() == (6, 7)
