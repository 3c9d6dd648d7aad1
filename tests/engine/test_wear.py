"""Processes that wear out are replaced between mini-batches, without a lost try or a second run."""

import json
import re

from harness import file_names, go, wait_until

COUNTS = """
    import os
    from recorder import record

    def init():
        record("init")

    def run(files):
        record("run", file=os.path.basename(files[0]))
        return [os.path.basename(file) for file in files]

    def shutdown():
        record("shutdown")
"""


def runs_of_processes(workplace):
    runs = {}
    for fact in workplace.recorded("run"):
        runs.setdefault(fact["pid"], []).append(fact["file"])
    return runs


def files_of(runs):
    return sorted(file for files in runs.values() for file in files)


def test_process_is_replaced_after_its_runs(workplace):
    workplace.data(20)
    ended = workplace.job(COUNTS, process_max_runs=6, process_count_per_node=1).run()
    assert ended.mini_batches == (20, 20, 0)
    assert ended.lines == file_names(20)
    runs = runs_of_processes(workplace)
    assert sorted(map(len, runs.values())) == [2, 6, 6, 6], runs
    assert files_of(runs) == file_names(20), "every mini-batch runs once"
    assert len(workplace.recorded("shutdown")) == 4, "a replaced process shuts down like any other"
    assert all(row["Picked Count"] == "1" for row in ended.attempts())
    assert "process000 has made 6 runs (process_max_runs), replacing it" in ended.log("sys/node/0/_main.txt")
    assert "It is replaced: it has made 6 runs (process_max_runs)." in ended.log("sys/master_role.txt")
    assert "3 processes were replaced: 3 after process_max_runs" in ended.result["notes"]
    assert "Note: 3 processes were replaced: 3 after process_max_runs." in ended.log("job_result.txt")


def test_replacement_spends_no_try_of_a_failing_mini_batch(workplace):
    workplace.data(6)
    script = COUNTS.replace("return [", 'assert not files[0].endswith("003.txt"), "three is bad"\n        return [')
    ended = workplace.job(script, process_max_runs=1, run_max_try=3).run()
    assert ended.mini_batches == (6, 5, 1)
    runs = runs_of_processes(workplace)
    assert sorted(map(len, runs.values())) == [1] * 8, "five, and three tries of the bad one"


def test_status_counts_replaced_processes(workplace):
    workplace.data(4)
    script = """
        from recorder import record, recorded, wait_for
        def run(files):
            wait_for(lambda: not files[0].endswith("003.txt") or recorded("go"))
            record("run")
            return files
    """
    running = workplace.job(script, process_max_runs=1).start()
    running.wait_for_record("run", 3)
    (job_id,) = workplace.job_ids()
    note = "3 processes were replaced: 3 after process_max_runs"
    wait_until(lambda: workplace.progress(job_id).get("notes") == [note], "the progress counts them")
    assert f"  note: {note}\n" in workplace.command("status", job_id).stdout
    status = json.loads(workplace.command("status", job_id, "--json").stdout)
    assert status["progress"]["notes"] == [note]
    go(workplace)
    assert running.wait().exit_status == 0


def test_process_that_leaks_is_replaced(workplace):
    workplace.data(12)
    script = COUNTS.replace(
        "def run(files):", "leaked = []\n\n    def run(files):\n        leaked.append(os.urandom(100 << 20))"
    )
    ended = workplace.job(script, process_max_memory="350MB").run()
    assert ended.mini_batches == (12, 12, 0)
    assert ended.lines == file_names(12)
    runs = runs_of_processes(workplace)
    # An interpreter occupies some 30 MB: the fourth run exceeds the limit, and so may the third where it is larger.
    assert 3 <= len(runs) <= 6 and max(map(len, runs.values())) <= 4, runs
    assert files_of(runs) == file_names(12)
    log = ended.log("sys/node/0/_main.txt")
    assert re.search(r"process000 occupies \d+(\.\d+)? MB after \d runs, more than 350 MB \(process_max_memory\)", log)
    (note,) = ended.result["notes"]
    assert re.fullmatch(r"\d process(es)? (was|were) replaced: \d above process_max_memory", note)


def test_start_is_itemised(workplace):
    workplace.data(2)
    script = """
        import time
        time.sleep(0.3)
        def init():
            time.sleep(0.2)
        def run(files):
            time.sleep(0.1)
            return files
    """
    ended = workplace.job(script).run(AZ_BATCHAI_GPU_COUNT_FOUND="1")
    (row,) = ended.table("sys/job_report/process_summary.csv")
    parts = ["Interpreter Seconds", "Import Seconds", "Init Method Seconds", "First Run Seconds"]
    interpreter, imported, init, first_run = (float(row[part]) for part in parts)
    assert interpreter > 0 and imported >= 0.3 and init >= 0.2 and first_run >= 0.1
    assert float(row["Init Seconds"]) >= imported + init - 0.001
    assert row["GPU"] == "0"
    assert float(row["GPU Busy Seconds"]) >= 0.2
    assert float(row["GPU Idle Seconds"]) >= 0.4, "the start counts as idle"
    result = ended.log("job_result.txt")
    assert re.search(
        r"Start of a process, mean of 1 process: interpreter .* init\(\) 0\.\d+ s, first run\(\) 0\.", result
    )
    assert re.search(r"Processes with GPUs: \d\.\d s in run\(\), \d\.\d s idle\.", result)
