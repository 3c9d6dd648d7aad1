"""GPUs of the processes of jobs on targets: a GPU belongs to one job at a time."""

from __future__ import annotations

import json

from harness import file_names, wait_until

HOLDS = """
    import os
    from recorder import record, wait_for
    def run(files):
        facts = {"job": os.environ["JOB"], "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        record("began", **facts)
        wait_for(lambda: os.path.exists(os.environ["RELEASE"]))
        record("ended", **facts)
        return [os.path.basename(files[0])]
"""


def job(workplace, name: str, count: int, script: str = HOLDS, **settings):
    variables = {"JOB": name, "RELEASE": str(workplace.folder / f"release-{name}")}
    return workplace.job_of_its_own(name, count, script, environment_variables=variables, **settings)


def gpus_of(workplace, name: str) -> set[str]:
    return {fact["gpus"] for fact in workplace.recorded("began") if fact["job"] == name}


def release(workplace, name: str) -> None:
    (workplace.folder / f"release-{name}").touch()


def test_job_waits_for_the_gpu_of_another_and_says_so(workplace, sqlite):
    sqlite.reducer()
    worker = sqlite.worker("--node", "here", AZ_BATCHAI_GPU_COUNT_FOUND="1")
    first = sqlite.enqueue(job(workplace, "first", 2))
    worker.wait_for_record("began")
    second = sqlite.enqueue(job(workplace, "second", 2))

    def hint():
        found = sqlite.status(second)["hint"]
        return found if found and "other jobs" in found else None

    waits = wait_until(hint, "the wait of the second job")
    assert waits.startswith("other jobs have all processes that it could use; "), waits
    assert gpus_of(workplace, "second") == set()
    for name in ["second", "first"]:
        release(workplace, name)
    for job_id in [first, second]:
        result = sqlite.wait_for_end(job_id)
        assert result["mini_batches"] == {"total": 2, "succeeded": 2, "failed": 0}
    facts = [json.loads(line) for line in workplace.record_file.read_text().splitlines()]
    assert [fact["job"] for fact in facts] == ["first"] * 4 + ["second"] * 4, "one after the other"
    assert {fact["gpus"] for fact in facts} == {"0"}


def test_job_gets_the_gpus_that_processes_of_another_have_left(workplace, sqlite):
    """The second job has one GPU as soon as a process of the first has ended its run, and not before."""
    sqlite.reducer()
    worker = sqlite.worker(AZ_BATCHAI_GPU_COUNT_FOUND="2")
    first = sqlite.enqueue(job(workplace, "first", 12, process_count_per_node=2))
    worker.wait_for_record("began", 2)
    assert gpus_of(workplace, "first") == {"0", "1"}
    second = sqlite.enqueue(job(workplace, "second", 6, process_count_per_node=2))
    release(workplace, "first")
    wait_until(lambda: gpus_of(workplace, "second"), "the second job")
    release(workplace, "second")
    for job_id in [first, second]:
        sqlite.wait_for_end(job_id)
    facts = [json.loads(line) for line in workplace.record_file.read_text().splitlines()]
    holders: dict[str, set[str]] = {"0": set(), "1": set()}
    for fact in facts:
        if fact["event"] == "began":
            holders[fact["gpus"]].add(fact["job"])
            assert len(holders[fact["gpus"]]) == 1, f"{fact} beside {holders}"
        else:
            holders[fact["gpus"]].discard(fact["job"])
    assert len(workplace.recorded("began")) == 18, "no mini-batch ran twice"


def test_processes_of_one_job_share_its_gpu(workplace, sqlite):
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 8, AZ_BATCHAI_GPU_COUNT_FOUND="2")
    shared = {"process_count_per_gpu": 3, "process_count_per_node": None}
    only = sqlite.enqueue(job(workplace, "only", 12, **shared))
    worker.wait_for_record("began", 6)
    began = [fact["gpus"] for fact in workplace.recorded("began")]
    assert sorted(began) == ["0"] * 3 + ["1"] * 3
    release(workplace, "only")
    assert sqlite.lines(only) == file_names(12)


def test_processes_of_a_job_have_several_gpus_each(workplace, sqlite):
    """A node with an odd number of GPUs has one that no process of this job can use, and that another job gets."""
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 8, AZ_BATCHAI_GPU_COUNT_FOUND="5")
    pairs = sqlite.enqueue(job(workplace, "pairs", 6, gpus_per_process=2, process_count_per_node=None))
    worker.wait_for_record("began", 2)
    taken = [gpu for gpus in gpus_of(workplace, "pairs") for gpu in gpus.split(",")]
    assert len(taken) == len(set(taken)) == 4, taken
    single = sqlite.enqueue(job(workplace, "single", 1, requires={"gpus": 1}))
    worker.wait_for_record("began", 3)
    assert gpus_of(workplace, "single").isdisjoint(taken)
    for name in ("pairs", "single"):
        release(workplace, name)
    assert sqlite.lines(pairs) == file_names(6)
    assert sqlite.lines(single) == file_names(1)
