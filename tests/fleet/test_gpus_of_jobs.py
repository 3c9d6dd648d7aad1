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

# As many processes as the node has room for.
ANY = {"process_count_per_node": None}


def gpus_of(workplace, name: str) -> list[str]:
    return sorted(fact["gpus"] for fact in workplace.recorded("began") if fact["job"] == name)


def test_job_waits_for_the_gpu_of_another_and_says_so(workplace, sqlite):
    sqlite.reducer()
    worker = sqlite.worker("--node", "here", AZ_BATCHAI_GPU_COUNT_FOUND="1")
    ids = [sqlite.enqueue(workplace.job_of_its_own("first", 2, HOLDS))]
    worker.wait_for_record("began")
    ids.append(sqlite.enqueue(workplace.job_of_its_own("second", 2, HOLDS)))

    def hint():
        found = sqlite.status(ids[1])["hint"]
        return found if found and "other jobs" in found else None

    waits = wait_until(hint, "the wait of the second job")
    assert waits.startswith("other jobs have all processes that it could use; "), waits
    assert gpus_of(workplace, "second") == []
    workplace.release("second", "first")
    for job_id in ids:
        assert sqlite.lines(job_id) == file_names(2)
    facts = [json.loads(line) for line in workplace.record_file.read_text().splitlines()]
    assert [fact["job"] for fact in facts] == ["first"] * 4 + ["second"] * 4, "one after the other"
    assert {fact["gpus"] for fact in facts} == {"0"}


def test_job_gets_the_gpus_that_processes_of_another_have_left(workplace, sqlite):
    """The second job has one GPU as soon as a process of the first has ended its run, and not before."""
    sqlite.reducer()
    worker = sqlite.worker(AZ_BATCHAI_GPU_COUNT_FOUND="2")
    gpus = {"requires": {"gpus": 1}, "process_count_per_node": None}
    first = sqlite.enqueue(workplace.job_of_its_own("first", 12, HOLDS, **gpus))
    worker.wait_for_record("began", 2)
    assert gpus_of(workplace, "first") == ["0", "1"]
    second = sqlite.enqueue(workplace.job_of_its_own("second", 6, HOLDS, process_count_per_node=2))
    workplace.release("first")
    wait_until(lambda: gpus_of(workplace, "second"), "the second job")
    workplace.release("second")
    assert (sqlite.lines(first), sqlite.lines(second)) == (file_names(12), file_names(6))
    holders: dict[str, set[str]] = {"0": set(), "1": set()}
    for fact in map(json.loads, workplace.record_file.read_text().splitlines()):
        if fact["event"] == "began":
            holders[fact["gpus"]].add(fact["job"])
            assert len(holders[fact["gpus"]]) == 1, f"{fact} beside {holders}"
        else:
            holders[fact["gpus"]].discard(fact["job"])
    assert len(workplace.recorded("began")) == 18, "no mini-batch ran twice"


def test_processes_share_a_gpu_or_have_several(workplace, sqlite):
    """A node with an odd number of GPUs has one that no process of the second job can use, and that the third gets."""
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 16, AZ_BATCHAI_GPU_COUNT_FOUND="5")
    shared = sqlite.enqueue(workplace.job_of_its_own("shared", 11, HOLDS, process_count_per_gpu=2, **ANY))
    worker.wait_for_record("began", 10)
    assert gpus_of(workplace, "shared") == sorted("01234" * 2)
    workplace.release("shared")
    assert sqlite.lines(shared) == file_names(11)
    pairs = sqlite.enqueue(workplace.job_of_its_own("pairs", 6, HOLDS, gpus_per_process=2, **ANY))
    worker.wait_for_record("began", 13)
    taken = [gpu for gpus in gpus_of(workplace, "pairs") for gpu in gpus.split(",")]
    assert len(taken) == len(set(taken)) == 4, taken
    single = sqlite.enqueue(workplace.job_of_its_own("single", 1, HOLDS, requires={"gpus": 1}))
    worker.wait_for_record("began", 14)
    assert set(gpus_of(workplace, "single")).isdisjoint(taken)
    workplace.release("pairs", "single")
    assert sqlite.lines(pairs) == file_names(6)
    assert sqlite.lines(single) == file_names(1)
