"""The cost of a power cut: the last written files are empty, truncated or missing.

No test cuts the power. One part plays what it leaves behind, and looks whether the job is finished all the same; the
other looks at what `durability: full` forces to disk, and when.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from harness import COMPLETED, DEADLINE_SECONDS, file_names, wait_until

SCRIPT = """
    import os
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        if name == os.environ.get("HOLD"):
            record("held")
            wait_for(lambda: False)
        record("run", file=name)
        # Some rows are small enough to travel in messages, some become parts.
        return [f"{name} {'x' * (300_000 if name.endswith('7.txt') else 5)}"]
"""
FILES = 30
ALL = file_names(FILES)


def expected_output():
    return "".join(f"{name} {'x' * (300_000 if name.endswith('7.txt') else 5)}\n" for name in ALL).encode()


def make_empty(file):
    file.write_bytes(b"")


def cut_short(file):
    os.truncate(file, file.stat().st_size - 3)


def take_away(file):
    file.unlink()


TEARS = [make_empty, cut_short, take_away]
TORN = pytest.mark.parametrize("tear", TEARS, ids=lambda tear: tear.__name__)


def segments_of(folder):
    """Returns the segments of the ledger in order, without files in progress (`NAME#1`)."""
    return sorted((folder / "ledger").glob("??????????"))


@pytest.fixture
def interrupted(workplace):
    """A job whose engine died with 25 committed mini-batches in several segments, and its folder."""
    workplace.data(FILES)
    job = workplace.job(SCRIPT)
    running = job.start(HOLD="025.txt")
    running.wait_for_record("held")
    (job_id,) = workplace.job_ids()
    folder = workplace.home / "jobs" / job_id

    def all_committed():
        ledger = b"".join(segment.read_bytes() for segment in segments_of(folder))
        return b"024.txt" in ledger

    wait_until(all_committed, "everything before the held mini-batch is committed")
    running.kill()
    shutil.copytree(workplace.home, workplace.folder / "kept", symlinks=True)
    return job, folder


def interrupt_again(job):
    """Puts all files back that the job had when its engine died."""
    workplace = job.workplace
    shutil.rmtree(workplace.home)
    shutil.copytree(workplace.folder / "kept", workplace.home, symlinks=True)
    for file in (workplace.folder / "output").glob("*"):
        file.unlink()


def continue_job(job, command):
    """Continues the job with either command; its end must be that of an undisturbed job."""
    before = len(job.workplace.recorded("run"))
    ended = job.run() if command == "run" else job.retry(job.workplace.job_ids()[0])
    assert ended.job_id == job.workplace.job_ids()[-1]
    assert len(job.workplace.job_ids()) == 1, f"it is continued, and no other is begun: {ended.stderr}"
    assert ended.output == expected_output()
    assert ended.items == ended.mini_batches == (FILES, FILES, 0)
    return ended, [fact["file"] for fact in job.workplace.recorded("run")[before:]]


def test_damaged_segments_are_repaired(interrupted):
    job, folder = interrupted
    for tear, command in product([make_empty, cut_short], ["run", "retry"]):
        interrupt_again(job)
        segments = segments_of(folder)
        torn = segments[len(segments) // 2 :]
        whole = b"".join(segment.read_bytes() for segment in segments[: len(segments) // 2])
        kept = {name for name in ALL if name.encode() in whole}
        for segment in torn:
            tear(segment)
        ended, again = continue_job(job, command)
        segments = "1 segment of the ledger is" if len(torn) == 1 else f"{len(torn)} segments of the ledger are"
        assert f"{segments} empty or truncated" in ended.stderr
        lost = set(ALL) - kept
        assert len(again) == len(set(again))
        if tear is make_empty:
            assert set(again) == lost, "what only they held runs again"
        else:
            assert set(ALL[25:]) <= set(again) <= lost, "and of one that is cut short the end"
        more, _ = continue_job(job, "retry")
        assert "nothing to do" in more.stderr


def test_missing_segment_costs_only_its_mini_batches(interrupted):
    """The next commit discovers the segments after it."""
    job, folder = interrupted
    segments_of(folder)[1].unlink()
    _, again = continue_job(job, "retry")
    assert set(ALL[25:]) <= set(again)


def test_damaged_parts_run_again(interrupted):
    job, folder = interrupted
    for tear in TEARS:
        interrupt_again(job)
        parts = sorted((folder / "parts").iterdir())
        assert len(parts) == 2
        tear(parts[0])
        ended, again = continue_job(job, "retry")
        assert "the rows of 1 mini-batch that had succeeded (the first is mini-batch 7) are missing" in ended.stderr
        assert sorted(again) == ["007.txt", *ALL[25:]]
        assert "The rows of 1 mini batch were lost or are incomplete; the mini-batches run again." in ended.log(
            "job_progress_overview.*"
        )


def test_damaged_plan_is_planned_again(interrupted):
    job, folder = interrupted
    plan = {file.name: file.read_bytes() for file in (folder / "plan").iterdir()}
    for tear, name in product(TEARS, ["0000000000", "schemas.json", "complete.json"]):
        interrupt_again(job)
        tear(folder / "plan" / name)
        _, again = continue_job(job, "retry")
        assert sorted(again) == ALL[25:], f"{tear.__name__}: {name}"
        assert {file.name: file.read_bytes() for file in (folder / "plan").iterdir()} == plan


def test_damaged_result_is_determined_again(workplace):
    workplace.data(FILES)
    job = workplace.job(SCRIPT)
    ended = job.run()
    for tear, command in product(TEARS, ["run", "retry"]):
        tear(workplace.home / "jobs" / ended.job_id / "result.json")
        status = workplace.command("status", ended.job_id)
        assert status.exit_status == 0 and "is interrupted" in status.stdout, str(status)
        assert "Interrupted" in workplace.command("jobs").stdout
        # The first result removed the parts.
        again, _ = continue_job(job, command)
        assert again.job_id == ended.job_id
        if tear is not take_away:
            assert "result.json cannot be read and is removed" in again.stderr


def test_all_kinds_of_damage_are_repaired_at_once(interrupted):
    job, folder = interrupted
    for tear in TEARS:
        interrupt_again(job)
        (folder / "progress.json").write_text("{}\n")
        for file in [*(folder / "plan").iterdir(), *(folder / "parts").iterdir(), folder / "progress.json"]:
            tear(file)
        tear(segments_of(folder)[-1])
        for queue in ["tasks", "results"]:
            for file in folder.glob(f"{queue}.db*"):
                file.unlink()
        assert "Interrupted" in job.workplace.command("jobs").stdout
        assert job.workplace.command("status", folder.name).exit_status == 0
        continue_job(job, "run")


def test_job_without_spec_starts_over(interrupted):
    job, folder = interrupted
    make_empty(folder / "spec.json")
    named = job.workplace.command("retry", folder.name)
    assert named.exit_status != COMPLETED
    assert "spec.json is damaged" in named.stderr
    ended = job.run()
    assert ended.job_id != folder.name
    assert ended.output == expected_output()


@dataclass
class Call:
    """One successful system call, and its paths."""

    name: str
    paths: list[str]


def returned(trace):
    """Returns the calls of a trace, in the order of their return."""
    begun = {}
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[thread] = call
            continue
        if call.startswith("<... "):
            call = begun.pop(thread) + call
        if re.search(r"\) += 0$", call):
            # Descriptors are shown with their paths: `fsync(7</folder/file>)`. The start of relative paths is not one.
            call = re.sub(r"AT_FDCWD(<[^>]*>)?", "", call)
            yield Call(call.partition("(")[0], re.findall(r'["<](/[^">]*)', call))


def traced(workplace, job, **environment):
    """Runs a job under strace, and returns the files forced to disk, the files renamed, and the exit status."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.fail("strace is missing: install it (on Debian: apt-get install strace)")
    trace = workplace.folder / "trace"
    calls = "trace=fsync,fdatasync,syncfs,rename,renameat,renameat2,link,linkat"
    command = [strace, "-f", "-qq", "-y", "-e", "signal=none", "-e", calls, "-o", trace]
    ended = subprocess.run(
        [*command, workplace.executable, "run", job.file, "--json"],
        cwd=workplace.folder,
        env={**workplace.environment, **environment},
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return list(returned(trace.read_text())), ended.returncode


FORCE = ("fsync", "fdatasync", "syncfs")
NAME = ("rename", "renameat", "renameat2", "link", "linkat")
MINI_BATCHES = 600


def forced(calls, path):
    return any(call.name in FORCE and call.paths == [str(path)] for call in calls)


def check_commits(calls, folder):
    """Every object of the job that others rely on was on the disk before it had its name, and its name after that.
    Returns how many there were."""
    commits = 0
    for position, call in enumerate(calls):
        if call.name not in NAME or not call.paths[1].startswith(f"{folder}/"):
            continue
        source, name = call.paths
        relative = Path(name).relative_to(folder)
        # The job does not read its sources.
        if relative.parts[0] in ("parts", "logs", "progress.json", "sources"):
            continue
        commits += 1
        # The next file reuses the name.
        assert forced(calls[:position], source), f"{relative} has its name before it is on the disk"
        assert forced(calls[position:], Path(name).parent), f"the name of {relative} is not on the disk"
    return commits


@pytest.fixture
def many(workplace):
    """Returns a job of many mini-batches, a few of them with large results."""
    workplace.write({f"data/{number:03}.txt": "" for number in range(MINI_BATCHES)})
    script = """
        import os
        def run(files):
            name = os.path.basename(files[0])
            return [f"{name} {'x' * (300_000 if name.endswith('77.txt') else 5)}"]
    """
    return lambda durability: workplace.job(script, durability=durability, process_count_per_node=2)


def test_full_durability_forces_every_commit_to_disk(workplace, many):
    calls, status = traced(workplace, many("full"))
    assert status == COMPLETED
    (job_id,) = workplace.job_ids()
    folder = workplace.home / "jobs" / job_id
    segments = segments_of(folder)
    # spec, identity, schemas, two chunks, complete, result
    assert check_commits(calls, folder) == len(segments) + 7
    for made in [workplace.folder, workplace.home, workplace.home / "jobs"]:
        assert forced(calls, made), f"what {made} lists is not on the disk"

    place = {call.paths[1]: position for position, call in enumerate(calls) if call.name in NAME}
    parts = [name for name in place if name.startswith(f"{folder}/parts/")]
    assert len(parts) == MINI_BATCHES // 100
    for part in parts:
        (segment,) = [segment for segment in segments if Path(part).name.encode() in segment.read_bytes()]
        between = calls[place[part] : place[str(segment)]]
        assert forced(between, folder / "parts"), f"{part} is in the ledger before it is on the disk"
    output = workplace.folder / "output"
    between = calls[place[str(output / "rows.txt")] : place[str(folder / "result.json")]]
    assert forced(between, output), "the job has ended before its output is on the disk"

    count = sum(call.name in FORCE for call in calls)
    assert count < MINI_BATCHES / 2, "rounds are forced to disk, not mini-batches"


def test_segment_is_on_disk_before_its_messages_are_acknowledged(workplace, many):
    calls, status = traced(workplace, many("full"), GRISTMILL_CRASH_AT="AfterSegmentCommit")
    assert status != COMPLETED
    (job_id,) = workplace.job_ids()
    folder = workplace.home / "jobs" / job_id
    (segment,) = segments_of(folder)
    assert forced(calls, f"{segment}#1") and forced(calls, folder / "ledger")


def test_process_durability_forces_only_the_end_to_disk(workplace, many):
    """These are the final file, and the result before the removal of parts."""
    calls, status = traced(workplace, many("process"))
    assert status == COMPLETED
    (job_id,) = workplace.job_ids()
    folder = workplace.home / "jobs" / job_id
    paths = [path for call in calls if call.name in FORCE for path in call.paths]
    ours = [path for path in paths if not re.search(r"(tasks|results)\.db", path)]
    assert [path for path in ours if not path.endswith(".tmp")][-3:] == [
        str(workplace.folder / "output"),
        str(folder / "result.json"),
        str(folder),
    ]
    assert not any("/ledger" in path or "/plan" in path or "/parts" in path for path in ours)
    assert len(paths) < 25


@TORN
def test_damaged_plan_of_a_target_is_planned_again(workplace, tear):
    workplace.data(3)
    workplace.write({"gristmill.toml": f'[targets.here]\nqueue = "sqlite:q"\nstore = "file://{workplace.folder}/s"\n'})
    job = workplace.job(SCRIPT)
    job_id = workplace.command("enqueue", job.file, "--target", "here").stdout.strip()
    chunk = workplace.folder / "s" / "jobs" / job_id / "plan" / "0000000000"
    whole = chunk.read_bytes()
    tear(chunk)
    retried = workplace.command("retry", job_id, "--target", "here")
    assert retried.exit_status == COMPLETED, str(retried)
    assert chunk.read_bytes() == whole


@pytest.mark.parametrize("store", ["file", "s3"])
def test_target_on_local_disks_rejects_full_durability(workplace, store):
    workplace.data(1)
    address = f"file://{workplace.folder}/store" if store == "file" else "s3://bucket/jobs"
    workplace.write({"gristmill.toml": f'[targets.here]\nqueue = "sqlite:queues"\nstore = "{address}"\n'})
    job = workplace.job(SCRIPT, durability="full")
    ended = workplace.command("enqueue", job.file, "--target", "here")
    assert ended.exit_status not in (COMPLETED, 101)
    assert "durability: full is not possible on target here: it keeps its queue in SQLite" in ended.stderr, str(ended)
