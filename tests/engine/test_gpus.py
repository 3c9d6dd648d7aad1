"""Assignment of GPUs to processes, as in the examples of the original's documentation; GPUs that fail."""

import pytest

from harness import COMPLETED, INVALID, file_names

SCRIPT = """
    import os
    from recorder import record, recorded, wait_for

    def init():
        record("init", process=os.environ.get("GRISTMILL_PROCESS"), gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))

    def run(files, context):
        name = context.process_name
        record("run", process=name, gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))
        seen = lambda process: any(fact["process"] == process for fact in recorded("run"))
        # process000, 002 and 001 die in this order, each after the previous replacement works.
        after = {"process000": "process003", "process002": "process004", "process001": "process005"}
        if name in after:
            wait_for(lambda: seen(after[name]))
            os._exit(1)
        wait_for(lambda: seen("process006"))
        return files
"""


def test_replacement_takes_the_gpu_of_a_dead_process(workplace):
    workplace.data(12)
    job = workplace.job(SCRIPT, process_count_per_node=4, run_max_try=9)
    job.run(AZ_BATCHAI_GPU_COUNT_FOUND="2")
    gpus = {fact["process"]: fact["gpu"] for fact in workplace.recorded("run")}
    assert gpus == {
        "process000": "0",
        "process001": "1",
        "process002": None,
        "process003": None,
        "process004": "0",
        "process005": None,
        "process006": "1",
    }


MEETS = """
    import os
    from recorder import record, recorded, wait_for

    def run(files, context):
        facts = {"gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "count": os.environ["AZ_BATCHAI_GPU_COUNT_FOUND"]}
        record("run", process=context.process_name, **facts)
        wait_for(lambda: len({fact["process"] for fact in recorded("run")}) >= int(os.environ["PROCESSES"]))
        return [os.path.basename(file) for file in files]
"""


@pytest.mark.parametrize(
    ("settings", "named", "seen"),
    [
        # The third process has none of its own.
        ({"process_count_per_node": 3}, "5,2", ["2", "5", "5,2"]),
        ({"process_count_per_node": None, "gpus_per_process": 2}, "7,2,5,0,1", ["5,0", "7,2"]),
    ],
)
def test_gpus_are_those_that_the_environment_names(workplace, settings, named, seen):
    """As on a machine that others use too, or under Slurm."""
    workplace.data(6)
    job = workplace.job(MEETS, **settings)
    job.run(AZ_BATCHAI_GPU_COUNT_FOUND="8", CUDA_VISIBLE_DEVICES=named, PROCESSES=str(len(seen)))
    found = {fact["process"]: (fact["gpu"], fact["count"]) for fact in workplace.recorded("run")}
    assert sorted(found.values()) == [(gpu, str(named.count(",") + 1)) for gpu in seen]


LOSES_GPU = """
    import os
    from recorder import record, recorded, wait_for

    GPU = os.environ.get("CUDA_VISIBLE_DEVICES")

    def run(files):
        name = os.path.basename(files[0])
        record("run", file=name, gpu=GPU)
        if GPU == "1":
            raise RuntimeError("CUDA error: no CUDA-capable device is detected")
        # The other GPU has failed three times, and its processes have ended, before this one has done everything.
        failed = lambda: [fact["pid"] for fact in recorded("run") if fact["gpu"] == "1"]
        wait_for(lambda: len(failed()) >= 3 and not any(os.path.exists(f"/proc/{pid}") for pid in failed()))
        return [name]
"""


@pytest.mark.parametrize(
    ("gpus", "settings", "bad", "named"),
    [
        (2, {"process_count_per_node": 2, "run_max_try": 3}, "1", "GPU 1"),
        (4, {"gpus_per_process": 2, "process_count_per_node": None, "run_max_try": 3}, "2,3", "GPUs 2 and 3"),
        (2, {"process_count_per_gpu": 2, "process_count_per_node": None, "run_max_try": 9}, "1", "GPU 1"),
    ],
    ids=["one", "several of a process", "shared"],
)
def test_gpu_that_keeps_failing_is_taken_out_of_use(workplace, gpus, settings, bad, named):
    workplace.data(12)
    job = workplace.job(LOSES_GPU.replace('== "1"', f'== "{bad}"'), **settings)
    ended = job.run(AZ_BATCHAI_GPU_COUNT_FOUND=str(gpus))
    assert (ended.mini_batches, ended.lines) == ((12, 12, 0), file_names(12))
    verb = "are" if "," in bad else "is"
    gone = f"{named} of node 0 {verb} out of use after 3 failures in a row: RuntimeError: CUDA error: no CUDA-capable"
    replaced, notice = ended.result["notes"]
    assert notice.startswith(gone) and gone in ended.log("sys/node/0/_main.txt")
    assert f"Note: {gone}" in ended.log("job_result.txt")
    failed = [fact["file"] for fact in workplace.recorded("run") if fact["gpu"] == bad]
    if "process_count_per_gpu" in settings:
        assert len(failed) <= 4, "the other process may run one when the GPU is taken out of use"
    else:
        assert len(failed) == len(set(failed)) == 3, "each mini-batch is tried elsewhere next"
        assert replaced == "3 processes were replaced: 3 after a GPU failure"
        assert f" can no longer use {named}, replacing it" in ended.log("sys/node/0/_main.txt")


@pytest.mark.parametrize(
    ("gpus", "settings", "seen"),
    [
        (4, {"process_count_per_node": 2}, ["0", "1"]),
        (0, {"process_count_per_node": 2}, [None, None]),
        # One process by default.
        (2, {}, ["0"]),
        (1, {"process_count_per_node": 2, "hide_unassigned_gpus": True}, ["0", ""]),
        (5, {"gpus_per_process": 2, "process_count_per_node": 3}, ["0,1", "2,3", None]),
        (3, {"gpus_per_process": 3, "process_count_per_node": 2, "hide_unassigned_gpus": True}, ["0,1,2", ""]),
        (2, {"process_count_per_gpu": 2, "process_count_per_node": 3}, ["0", "1", "0"]),
        (1, {"process_count_per_gpu": 2, "process_count_per_node": 3}, ["0", "0", None]),
    ],
    ids=str,
)
def test_each_process_sees_the_gpus_that_it_is_assigned(workplace, gpus, settings, seen):
    workplace.data(2 * len(seen))
    job = workplace.job(MEETS, **{"process_count_per_node": None, **settings})
    ended = job.run(AZ_BATCHAI_GPU_COUNT_FOUND=str(gpus), PROCESSES=str(len(seen)))
    visible = {fact["process"]: fact["gpu"] for fact in workplace.recorded("run")}
    assert visible == {f"process{number:03}": gpu for number, gpu in enumerate(seen)}
    assert ended.lines == file_names(2 * len(seen))
    summary = {row["Process Name"]: row["GPU"] for row in ended.table("sys/job_report/process_summary.csv")}
    assert summary == {process: (gpu or "").replace(",", " ") for process, gpu in visible.items()}


@pytest.mark.parametrize(
    ("gpus", "settings", "expected"),
    [
        (2, {"gpus_per_process": 4}, "gpus_per_process: a process needs 4 GPUs, and this machine has 2 GPUs;"),
        (0, {"gpus_per_process": 1}, "gpus_per_process: a process needs 1 GPU, and this machine has no GPU;"),
        (0, {"process_count_per_gpu": 2}, "process_count_per_gpu: a process needs 1 GPU, and this machine has no GPU;"),
    ],
    ids=["too few", "none", "none to share"],
)
def test_machine_with_too_few_gpus_refuses_the_job(workplace, gpus, settings, expected):
    workplace.data(1)
    job = workplace.job(MEETS, **settings)
    for command in ("validate", "run"):
        ended = workplace.command(command, job.file, AZ_BATCHAI_GPU_COUNT_FOUND=str(gpus))
        assert ended.exit_status == INVALID and expected in ended.stderr, str(ended)
    assert workplace.job_ids() == []


def test_job_is_not_continued_with_too_few_gpus(workplace):
    workplace.data(2)
    script = """
        from recorder import record
        def init(): record("import")
        def run(files): raise ValueError("fails") if len(files) == 1 else None
    """
    job = workplace.job(script, gpus_per_process=2, process_count_per_node=None)
    failed = job.run(expect=42, AZ_BATCHAI_GPU_COUNT_FOUND="2")
    for command in (
        ["retry", failed.job_id],
        ["retry", failed.job_id, "--mini-batch", "0"],
        ["retry", failed.job_id, "--separate"],
    ):
        ended = workplace.command(*command, AZ_BATCHAI_GPU_COUNT_FOUND="1")
        assert ended.exit_status not in (COMPLETED, 42, 101), str(ended)
        assert "gpus_per_process: a process needs 2 GPUs, and this machine has 1 GPU;" in ended.stderr, str(ended)
