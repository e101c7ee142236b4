"""A run that is recorded to a URL is whole in its spool and in the store, whatever happens to the store."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vramscope
from vramscope.cli import main
from vramscope.errors import MissingExtraError, StoreError, UsageError
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action, Trace
from vramscope.remote.upload import STATE_FILE, Upload, UploadState, read_state, write_state
from vramscope.store.directory import MANIFEST
from vramscope.store.write.writer import Writer

TRAINING = Path(__file__).parent / "scripts" / "training.py"
ENDS_WITHIN_S = 240


@pytest.fixture
def spool(monkeypatch, tmp_path):
    monkeypatch.setenv("VRAMSCOPE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("VRAMSCOPE_UPLOAD_WAIT_S", "60")
    return tmp_path / "spool"


def begun(*args, stdin=subprocess.DEVNULL):
    return subprocess.Popen(
        [sys.executable, str(TRAINING), *map(str, args)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, code=0):
    try:
        out, err = process.communicate(timeout=ENDS_WITHIN_S)
    finally:
        process.kill()
    assert process.returncode == code, err
    return out, err


def files_of(rank):
    """The hash of each file of the trace, by its path in the rank's directory."""
    return {
        str(path.relative_to(rank)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in rank.rglob("*")
        if path.is_file() and path.name != STATE_FILE
    }


def objects_of(s3, place):
    s3.invalidate_cache()
    return {
        name.removeprefix(f"{place}/"): hashlib.sha256(s3.cat_file(name)).hexdigest()
        for name in s3.find(place)
    }


def assert_whole(run):
    (recording,) = run.recordings
    assert [note.text for note in recording.notes if is_of_loss(note)] == []
    return len(recording.trace)


def is_of_loss(note: Note):
    return any(word in note.code for word in ("missing", "damaged", "lost", "cut", "gap", "stopped"))


def test_a_recording_to_s3_is_there_byte_for_byte_and_its_losses_do_not_change(s3, bucket, spool):
    out, err = ended(begun(f"s3://{bucket}/run", 12, 0))
    rank = spool / "s3" / bucket / "run" / "rank0"

    assert objects_of(s3, f"{bucket}/run/rank0") == files_of(rank)
    assert f"uploaded to s3://{bucket}/run" in err
    assert assert_whole(vramscope.load(f"s3://{bucket}/run")) == assert_whole(vramscope.load(rank)) > 100
    unrecorded, _ = ended(begun(rank.parents[2] / "local", 12, 0))
    assert out.splitlines()[-2] == unrecorded.splitlines()[-2]


@pytest.mark.exhaustive
def test_closed_parts_are_in_the_store_while_the_program_runs(s3, bucket, spool):
    training = begun(f"s3://{bucket}/run", 400, 0, "wait", stdin=subprocess.PIPE)
    try:
        wait_for_events(s3, f"{bucket}/run")
        assert vramscope.load(f"s3://{bucket}/run").outcome is vramscope.load(spool / "s3" / bucket).outcome
        training.stdin.write("\n")
        ended(training)
    finally:
        training.kill()

    assert objects_of(s3, f"{bucket}/run/rank0") == files_of(spool / "s3" / bucket / "run" / "rank0")


def test_a_lost_machine_leaves_what_was_uploaded_and_all_of_it_is_read(tmp_path, monkeypatch):
    """Rows that are written during an upload refer to stacks that it has sent already."""
    writer = growing(tmp_path / "spool")
    n_sent = []
    real = Upload._send_file

    def while_it_is_written(self, name, n_bytes):
        write_step(writer, 3 + len(n_sent))
        n_sent.append(name)
        real(self, name, n_bytes)

    monkeypatch.setattr(Upload, "_send_file", while_it_is_written)
    url = f"file://{tmp_path}/store/run"
    Upload(writer.path, url).send(is_final=False, is_growing_sent=True)
    (recording,) = vramscope.load(url).recordings

    assert n_sent == ["stacks.arrows", "events-0.arrows"]
    assert len(recording.trace) == 3
    assert [recording.stacks.frames(row)[0].line for row in recording.trace.stack_id] == [0, 1, 2]


def test_the_part_that_grows_waits_for_its_time(tmp_path):
    writer = growing(tmp_path / "spool")
    upload = Upload(writer.path, f"file://{tmp_path}/store/run")
    upload.send(is_final=False)
    before = {path.name for path in (tmp_path / "store" / "run" / "rank0").iterdir()}
    upload.send(is_final=False, is_growing_sent=True)
    write_step(writer, 3)
    upload.send(is_final=False)
    cut = len(vramscope.load(tmp_path / "store" / "run").recordings[0].trace)
    writer.close(Outcome.FINISHED)
    upload.send(is_final=True)

    assert "events-0.arrows" not in before
    assert upload.growing_bytes == (writer.path / "events-0.arrows").stat().st_size
    assert cut == 3
    assert files_of(tmp_path / "store" / "run" / "rank0") == files_of(writer.path)


def growing(directory):
    """A rank that is being recorded, of three steps."""
    process = Process(0, 1, "a host", os.getpid())
    writer = Writer(directory, source="cuda", process=process, devices=[Device(0)], started_ns=10**18)
    writer.stacks([(0, "main", "/net/train.py", 1)])
    for step in range(3):
        write_step(writer, step)
    return writer


def write_step(writer, step):
    """One event, of a line that no other has: the first stack is that of the program."""
    writer.stacks([(1, "train", "/net/train.py", step)])
    row = {"action": [Action.ALLOC], "address": [(step + 1) << 30], "time_ns": [10**18 + step]}
    writer.append(Trace.of(**row, size=[512], block_size=[512], stack_id=[2 + step]), 0)


def test_the_part_that_grows_is_in_the_store_while_the_program_runs(s3, bucket, spool, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_UPLOAD_EVERY_S", "1")
    training = begun(f"s3://{bucket}/run", 20, 0.03, "wait", stdin=subprocess.PIPE)
    try:
        wait_for_events(s3, f"{bucket}/run")
        (recording,) = vramscope.load(f"s3://{bucket}/run").recordings
        assert len(recording.trace) > 0
        assert not (spool / "s3" / bucket / "run" / "rank0" / "part1").exists()
        training.stdin.write("\n")
        ended(training)
    finally:
        training.kill()

    assert objects_of(s3, f"{bucket}/run/rank0") == files_of(spool / "s3" / bucket / "run" / "rank0")


def wait_for_events(s3, place):
    """Until a run can be opened: its manifest is uploaded after the files that it names."""
    end = time.monotonic() + 60
    while not all(any(part in name for name in find(s3, place)) for part in ("/events", "/manifest")):
        assert time.monotonic() < end, "nothing was uploaded"
        time.sleep(0.2)


def find(s3, place):
    s3.invalidate_cache()
    try:
        return s3.find(place)
    except FileNotFoundError:
        return []


def test_a_server_that_is_killed_in_the_middle_and_comes_back_has_the_whole_trace(own_server, s3_of, spool):
    """The server of moto forgets everything: what was sent before has to be sent again."""
    s3 = s3_of(own_server)
    s3.mkdir("vanishing")
    training = begun("s3://vanishing/run", 200, 0, "wait", stdin=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while not find(s3, "vanishing/run"):
            assert time.monotonic() < end, "nothing was uploaded"
            time.sleep(0.2)
        own_server.kill()
        training.stdin.write("\n")
        training.stdin.flush()
        time.sleep(3)
        own_server.start()
        s3.mkdir("vanishing")
        ended(training)
    finally:
        training.kill()

    rank = spool / "s3" / "vanishing" / "run" / "rank0"
    assert read_state(rank).is_whole
    assert objects_of(s3, "vanishing/run/rank0") == files_of(rank)
    assert assert_whole(vramscope.load("s3://vanishing/run")) > 100


def test_a_bucket_that_refuses_loses_nothing_and_upload_finishes_it(  # noqa: PLR0913, PLR0917
    refusing_server, s3_process, s3, bucket, spool, monkeypatch, capsys
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_server.url)
    _, err = ended(begun(f"s3://{bucket}/run", 12, 0))
    rank = spool / "s3" / bucket / "run" / "rank0"

    assert "access is refused" in err
    assert f"`vramscope upload {rank}` finishes that" in err
    assert assert_whole(vramscope.load(rank)) > 100
    assert find(s3, f"{bucket}/run") == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_process.url)
    type(s3).clear_instance_cache()
    assert main(["upload", str(rank.parent)]) == 0
    assert f"s3://{bucket}/run/rank0 has the whole trace" in capsys.readouterr().out
    assert objects_of(s3, f"{bucket}/run/rank0") == files_of(rank)


def test_a_training_that_is_killed_is_uploaded_as_far_as_it_was_written(s3, bucket, spool):
    training = begun(f"s3://{bucket}/run", 10_000, 0.001)
    rank = spool / "s3" / bucket / "run" / "rank0"
    try:
        while training.stdout.readline().split() != ["step", "60"]:
            assert training.poll() is None
        time.sleep(2)
        os.kill(training.pid, signal.SIGKILL)
    finally:
        training.kill()
        training.communicate(timeout=60)
    end = time.monotonic() + 60
    while not read_state(rank).is_whole:
        assert time.monotonic() < end, "the rest was not uploaded"
        time.sleep(0.2)

    assert objects_of(s3, f"{bucket}/run/rank0") == files_of(rank)


@pytest.mark.exhaustive
def test_another_run_at_the_url_is_not_overwritten(s3, bucket, spool):
    ended(begun(f"s3://{bucket}/run", 3, 0))
    first = objects_of(s3, f"{bucket}/run")
    for path in sorted(spool.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    _, err = ended(begun(f"s3://{bucket}/run", 3, 0))

    assert objects_of(s3, f"{bucket}/run") == first
    assert f"uploaded to s3://{bucket}/run-2" in err
    assert assert_whole(vramscope.load(f"s3://{bucket}/run-2")) > 20


def test_an_upload_that_stopped_sends_only_the_rest(job, s3, bucket, monkeypatch):
    rank, url = job / "rank3", f"s3://{bucket}/job"
    sent = []
    real = Upload._send_file

    def until_refused(self, name, n_bytes):
        if len(sent) == 1:
            raise PermissionError("no more")
        sent.append(name)
        real(self, name, n_bytes)

    monkeypatch.setattr(Upload, "_send_file", until_refused)
    with pytest.raises(Exception, match="access is refused"):
        Upload(rank, url).send(is_final=True)
    monkeypatch.setattr(Upload, "_send_file", lambda self, name, n: (sent.append(name), real(self, name, n)))
    upload = Upload(rank, url)
    upload.send(is_final=True)

    assert upload.is_whole
    assert sorted(sent) == sorted({*files_of(rank)} - {MANIFEST})
    assert objects_of(s3, f"{bucket}/job/rank3") == files_of(rank)


def test_a_file_that_the_store_lost_is_sent_again(job, s3, bucket):
    rank, url = job / "rank3", f"s3://{bucket}/job"
    Upload(rank, url).send(is_final=True)
    s3.rm_file(f"{bucket}/job/rank3/stacks.arrows")
    Upload(rank, url).send(is_final=True)

    assert objects_of(s3, f"{bucket}/job/rank3") == files_of(rank)


def test_the_manifest_is_sent_last(job, tmp_path, monkeypatch):
    """A reader of the store then never misses what the manifest names."""
    order = []
    real = Upload._pipe
    monkeypatch.setattr(
        Upload, "_pipe", lambda self, target, data: (order.append(target), real(self, target, data))
    )
    Upload(job / "rank0", f"file://{tmp_path}/store/job").send(is_final=True)

    assert [Path(name).name for name in order].index(MANIFEST) == len(order) - 1 > 0
    assert files_of(tmp_path / "store" / "job" / "rank0") == files_of(job / "rank0")


def test_an_end_that_only_a_name_tells_is_in_the_store(tmp_path, monkeypatch):
    """No byte can be written into the spool any more: neither the end nor what was sent."""
    writer, url = growing(tmp_path / "spool"), f"file://{tmp_path}/store/run"
    upload = Upload(writer.path, url)
    upload.send(is_final=False, is_growing_sent=True)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", refused)
        disk.setattr(os, "pwrite", refused)
        with pytest.raises(StoreError, match="cannot write"):
            write_step(writer, 1)
        with pytest.raises(StoreError, match="cannot write"):
            writer.close(Outcome.FAILED, "StoreError: …")
    monkeypatch.setattr("vramscope.remote.upload.write_state", refused)
    upload.send(is_final=True)

    assert upload.is_whole
    (recording,) = vramscope.load(url).recordings
    assert recording.outcome is Outcome.FAILED
    assert "stopped" in [note.code for note in recording.notes]
    assert len(recording.trace)


def refused(*_):
    raise OSError(errno.EREMOTEIO, os.strerror(errno.EREMOTEIO))


def test_the_bandwidth_is_bounded(job, tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr("vramscope.remote.upload.time.sleep", pauses.append)
    n_bytes = sum(path.stat().st_size for path in (job / "rank0").iterdir() if path.name != MANIFEST)
    Upload(job / "rank0", f"file://{tmp_path}/store/job", bytes_per_s=1000).send(is_final=True)

    assert sum(pauses) == pytest.approx(n_bytes / 1000, rel=0.2)


def test_what_cannot_be_recorded_to_is_refused_before_the_training_begins(spool):
    with pytest.raises(UsageError, match="memory://run: lasts as long as its process"):
        vramscope.record("memory://run")
    with pytest.raises(UsageError, match="name a run"):
        vramscope.record("s3://")
    with pytest.raises(MissingExtraError, match="gcsfs"):
        vramscope.record("gs://bucket/run")
    assert not spool.exists()


@pytest.mark.usefixtures("spool")
def test_the_training_imports_no_package_of_a_store(bucket):
    code = (
        "import sys, torch, vramscope\n"
        f"with vramscope.record('s3://{bucket}/run', device='simulated'): torch.ones(9)\n"
        "print(sorted({'s3fs', 'aiobotocore', 'botocore'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert done.stdout.strip() == "[]"


def test_upload_of_a_run_that_was_not_recorded_to_a_url_asks_where(job, tmp_path, capsys):
    assert main(["upload", str(job)]) == 2
    assert "--to s3://bucket/run" in capsys.readouterr().err
    assert main(["upload", str(job), "--to", f"file://{tmp_path}/store/job"]) == 0
    assert {each.name: files_of(each) for each in (tmp_path / "store" / "job").iterdir()} == {
        each.name: files_of(each) for each in job.iterdir()
    }


def test_old_uploaded_spools_go_and_what_no_store_has_stays(job, monkeypatch):
    from vramscope.remote import upload

    monkeypatch.setenv("VRAMSCOPE_SPOOL", str(job.parent))
    for rank in job.iterdir():
        write_state(
            rank, UploadState("s3://b/job", "s3://b/job", {}, is_whole=rank.name in ("rank1", "rank2"))
        )
    upload.remove_uploaded(job / "rank2", largest_bytes=0)

    assert sorted(rank.name for rank in job.iterdir()) == [f"rank{n}" for n in range(8) if n != 1]
