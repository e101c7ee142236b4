"""A run is read alike from a directory, ``file://``, ``memory://`` and S3; only what is needed is copied."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

import vramscope
from vramscope.cli import main
from vramscope.errors import StoreError, UnknownNameError, UsageError
from vramscope.fleet import compared_run
from vramscope.remote.copies import RemoteTree, copied_summaries
from vramscope.store.directory import MANIFEST
from vramscope.store.summaries import SUMMARY_FILE


def put(files, run, place):
    for path in run.rglob("*"):
        if path.is_file():
            files.pipe_file(f"{place}/{path.relative_to(run)}", path.read_bytes())


def without_summaries(run):
    for path in run.rglob(SUMMARY_FILE):
        path.unlink()


def answer(capsys, *args):
    assert main(["ranks", "--json", *args]) == 0
    return capsys.readouterr().out


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()


def test_ranks_gives_the_same_bytes_from_everywhere(job, s3, bucket, memory, capsys):
    put(s3, job, f"{bucket}/runs/job")
    put(memory, job, "/runs/job")
    truth = compared_run(job)
    expected = answer(capsys, str(job))
    without_summaries(job)

    assert json.loads(expected)["outliers"][0]["rank"] == 5
    assert len(truth.summaries) == 8
    assert answer(capsys, f"file://{job}") == expected
    assert answer(capsys, "memory://runs/job") == expected
    assert answer(capsys, f"s3://{bucket}/runs/job") == expected
    # And again, from what was copied and made.
    assert answer(capsys, f"s3://{bucket}/runs/job") == expected


def test_ranks_with_summaries_copies_no_events(summarized_job, s3, bucket, capsys, tmp_path):
    expected = answer(capsys, str(summarized_job))
    put(s3, summarized_job, f"{bucket}/job")

    assert answer(capsys, f"s3://{bucket}/job") == expected
    copied = {path.name for path in (tmp_path / "cache" / "remote").rglob("*") if path.is_file()}
    assert copied == {MANIFEST, SUMMARY_FILE, ".remote.json"}


def test_a_summary_that_is_older_than_its_events_in_the_store_is_made_again(
    summarized_job, a_rank, s3, bucket, capsys, tmp_path
):
    grown = a_rank(tmp_path / "other", 3, 8, mib=300, n_steps=6)
    shutil.copytree(grown, summarized_job / "rank3", dirs_exist_ok=True)
    put(s3, summarized_job, f"{bucket}/job")

    assert 3 in [odd["rank"] for odd in json.loads(answer(capsys, f"s3://{bucket}/job"))["outliers"]]


@pytest.mark.parametrize("command", ["report", "leaks", "fit", "info", "check"])
def test_every_command_answers_from_s3_as_from_a_directory(command, job, s3, bucket, capsys):
    put(s3, job, f"{bucket}/job")
    more = ["--max-peak", "1GiB"] if command == "check" else ["--json"]

    code = main([command, str(job), *more])
    expected = capsys.readouterr().out
    assert main([command, f"s3://{bucket}/job", *more]) == code
    assert capsys.readouterr().out.replace(f"s3://{bucket}/job", str(job)) == expected


def test_the_report_of_many_ranks_reads_one_of_them(a_rank, with_summaries, s3, bucket, tmp_path, capsys):
    run = tmp_path / "runs" / "many"
    for rank in range(20):
        a_rank(run, rank, 20, mib=100 + 20 * (rank == 11))
    with_summaries(run)
    put(s3, run, f"{bucket}/many")

    assert main(["report", f"s3://{bucket}/many"]) == 0
    assert "rank 11" in capsys.readouterr().out
    assert {path.parent.name for path in (tmp_path / "cache").rglob("events-*")} == {"rank11"}


def test_a_second_reading_copies_nothing(job, s3, bucket, monkeypatch):
    put(s3, job, f"{bucket}/job")
    vramscope.load(f"s3://{bucket}/job")

    def refused(*_args, **_options):
        raise AssertionError("copied again")

    monkeypatch.setattr(RemoteTree, "_read_many", refused)
    monkeypatch.setattr(RemoteTree, "_stream", refused)
    assert len(vramscope.load(f"s3://{bucket}/job").ranks) == 8


def test_what_changed_in_the_store_is_copied_again_and_what_is_gone_goes(job, a_rank, s3, bucket):
    put(s3, job, f"{bucket}/job")
    before = vramscope.load(f"s3://{bucket}/job")
    s3.rm(f"{bucket}/job/rank7", recursive=True)
    shutil.rmtree(job / "rank0")
    a_rank(job, 0, 8, n_steps=9)
    put(s3, job / "rank0", f"{bucket}/job/rank0")
    after = vramscope.load(f"s3://{bucket}/job")

    assert [len(one.trace) for one in before.recordings] == [3] * 8
    assert [len(one.trace) for one in after.recordings] == [9] + [3] * 6
    assert after.path == f"s3://{bucket}/job"


def test_a_large_file_arrives_byte_for_byte(s3, bucket):
    data = bytes(range(256)) * 20_000
    s3.pipe_file(f"{bucket}/large.bin", data)
    tree = RemoteTree(f"s3://{bucket}")
    tree.copy_all()

    assert (tree.path / "large.bin").read_bytes() == data


def test_a_snapshot_file_opens_from_its_url(s3, bucket):
    data = Path(__file__).parents[1] / "captures"
    smallest = min(data.glob("*.pickle*"), key=lambda path: path.stat().st_size)
    s3.pipe_file(f"{bucket}/{smallest.name}", smallest.read_bytes())
    run = vramscope.load(f"s3://{bucket}/{smallest.name}")

    assert [len(r.trace) for r in run.recordings] == [
        len(r.trace) for r in vramscope.load(smallest).recordings
    ]


def test_names_of_a_store_never_lead_out_of_the_copy(memory, tmp_path, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    memory.store.clear()
    memory.pipe_file("/evil/run/ok.txt", b"fine")
    memory.store["/evil/run/../../../../escaped.txt"] = memory.store["/evil/run/ok.txt"]
    tree = RemoteTree("memory://evil/run")
    tree.copy_all()

    assert [path.name for path in tmp_path.rglob("*.txt")] == ["ok.txt"]
    assert tree.path.is_relative_to(tmp_path / "cache")


def test_a_copy_of_a_url_with_dots_stays_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))

    assert RemoteTree("memory://a/../../../b").path.resolve().is_relative_to(tmp_path / "cache")


@pytest.mark.usefixtures("s3")
def test_nothing_at_a_url_is_a_clear_error(bucket):
    with pytest.raises(UnknownNameError, match="there is nothing"):
        vramscope.load(f"s3://{bucket}/nothing")
    with pytest.raises(UnknownNameError, match="there is nothing"):
        copied_summaries(f"s3://{bucket}/nothing")


def test_an_unknown_kind_of_store_is_asked_wrongly():
    with pytest.raises(UsageError, match="nostore"):
        vramscope.load("nostore://x/y")


@pytest.mark.usefixtures("s3_environment")
def test_a_store_that_is_away_is_a_clear_error(monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="s3://b/run: the store is not reached"):
        vramscope.load("s3://b/run")


def test_without_fsspec_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['fsspec'] = None; sys.modules['fsspec.core'] = None\n"
        "from vramscope.cli import main\n"
        "sys.exit(main(['report', 's3://bucket/run']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 1
    assert 'pip install "vramscope[remote]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_several_runs_below_a_url_are_named(job, memory, tmp_path, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))
    put(memory, job, "/all/a")
    put(memory, job, "/all/b")
    with pytest.raises(UsageError, match="memory://all/a, memory://all/b"):
        vramscope.load("memory://all")
