"""More jobs than a worker has places for: it works on a few at a time, and every job comes to its turn."""

from __future__ import annotations

from harness import wait_until

JOBS = 40
# A worker has four places for each of its processes.
PLACES = 8

COUNTS_ITS_SIBLINGS = f"""
    import os
    from pathlib import Path
    from recorder import record, recorded, wait_for
    def siblings():
        count = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            count += int(parent) == os.getppid() and state != "Z"
        return count
    def run(files):
        record("began", job=os.environ["JOB"], processes=siblings())
        wait_for(lambda: len(recorded("began")) >= {PLACES})
        return [os.path.basename(files[0])]
"""


def test_forty_jobs_complete_on_a_worker_of_two_processes_a_few_at_a_time(workplace, sqlite):
    """Each of the first jobs waits for as many as the worker has places: so many begin at once, and no more."""
    sqlite.reducer()
    jobs = []
    for number in range(JOBS):
        name = f"job{number}"
        job = workplace.job_of_its_own(name, 1, COUNTS_ITS_SIBLINGS, environment_variables={"JOB": name})
        jobs.append(sqlite.enqueue(job))
    sqlite.worker("--process-count", 2)
    for job_id in jobs:
        result = sqlite.wait_for_end(job_id)
        assert result["mini_batches"] == {"total": 1, "succeeded": 1, "failed": 0}
    began = workplace.recorded("began")
    assert len({fact["job"] for fact in began}) == len(began) == JOBS, "each ran once"
    # Processes of jobs that have just ended may be counted too.
    assert max(fact["processes"] for fact in began) <= PLACES + 4, began


HOLDS = """
    import os
    from recorder import record, wait_for
    def run(files):
        record("began", job=os.environ["JOB"])
        wait_for(lambda: os.path.exists(os.environ["RELEASE"]))
        return [os.path.basename(files[0])]
"""


def test_job_without_a_place_says_what_it_waits_for(workplace, sqlite):
    release = workplace.folder / "release"

    def job(name: str):
        return workplace.job_of_its_own(name, 1, HOLDS, environment_variables={"JOB": name, "RELEASE": str(release)})

    sqlite.reducer()
    first = [sqlite.enqueue(job(f"job{number}")) for number in range(4)]
    worker = sqlite.worker("--node", "here", "--process-count", 1)
    worker.wait_for_record("began", 4)
    last = sqlite.enqueue(job("last"))

    def hint():
        found = sqlite.status(last)["hint"]
        return found if found and "other jobs" in found else None

    waits = wait_until(hint, "what the last job waits for")
    assert waits.endswith(" s: this node works on 4 other jobs"), waits
    assert {fact["job"] for fact in workplace.recorded("began")} == {f"job{number}" for number in range(4)}
    release.touch()
    for job_id in [*first, last]:
        sqlite.wait_for_end(job_id)
    assert len(workplace.recorded("began")) == 5, "each ran once"
