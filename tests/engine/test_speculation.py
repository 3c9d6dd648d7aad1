"""Slow mini-batches get a speculative run, and the first success counts."""

import pytest

from harness import file_names, is_alive, wait_until

FILES = 12
SLOW = "005.txt"


@pytest.fixture
def job(workplace):
    """A job with a slow mini-batch: its original run marks itself and hangs; the speculative run finds the mark."""
    workplace.data(FILES)
    workplace.environment["MARK"] = str(workplace.folder / "mark")
    script = """
        import os, time
        from recorder import record
        def run(files):
            name = os.path.basename(files[0])
            if name != "005.txt":
                time.sleep(0.05)
                return [name]
            first = not os.path.exists(os.environ["MARK"])
            record("first" if first else "second")
            open(os.environ["MARK"], "a").close()
            if first or "HANGS" in os.environ:
                time.sleep(1000)
            return [name]
    """
    return workplace.job(script, process_count_per_node=3)


def test_speculative_run_ends_the_job(workplace, job):
    ended = job.run()
    assert ended.lines == file_names(FILES)
    assert ended.mini_batches == (FILES, FILES, 0)
    assert ended.result["copies"] == {"started": 1, "won": 1}
    assert "1 speculative run, 1 won" in ended.log("job_result.txt")
    assert f"{SLOW}) takes far longer than others" in ended.log("sys/master_role.txt")
    assert [len(workplace.recorded(which)) for which in ("first", "second")] == [1, 1]
    (slower,) = workplace.recorded("first")
    wait_until(lambda: not is_alive(slower["pid"]), "the end of the slower start")


def test_killed_job_continues_after_a_speculative_run(job):
    running = job.start(HANGS="1")
    (second,) = running.wait_for_record("second")
    running.kill(second["pid"])
    (job_id,) = job.workplace.job_ids()
    ended = job.retry(job_id)
    assert ended.lines == file_names(FILES)
    # The original run has lost its delivery, the speculative run none.
    assert ended.mini_batches == (FILES, FILES, 0)
