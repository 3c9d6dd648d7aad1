"""Jobs of a RabbitMQ target do not wait for each other: each has a lane of the task queue."""

import json

import pytest

from harness import wait_until

LARGE, QUICK, SMALL = 2000, 200, 10

LARGE_SCRIPT = f"""
    import os, time
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        record("large", file=name)
        time.sleep(0.01)
        if int(name.partition(".")[0]) >= {QUICK}:
            wait_for(lambda: os.path.exists(os.environ["GATE"]))
        return [name]
"""
SMALL_SCRIPT = """
    import os, time
    from recorder import record
    def run(files):
        record("small")
        time.sleep(float(os.environ.get("SLEEP", "0")))
        return [os.path.basename(files[0])]
"""


def names_of(workplace, folder):
    names = sorted(path.name for path in (workplace.folder / folder).iterdir())
    return "".join(f"{name}\n" for name in names)


def test_small_job_does_not_wait_for_a_large_one(workplace, rabbitmq):
    """The large job cannot end before the small one, all of whose messages were published behind its own."""
    gate = workplace.folder / "gate"
    large = rabbitmq.enqueue(workplace.job_of_its_own("large", LARGE, LARGE_SCRIPT))
    small = rabbitmq.enqueue(workplace.job_of_its_own("small", SMALL, SMALL_SCRIPT))
    rabbitmq.reducer()
    rabbitmq.worker("--process-count", 2, GATE=str(gate))
    result = rabbitmq.wait_for_end(small)
    assert rabbitmq.output(result).decode() == names_of(workplace, "small")
    assert len(workplace.recorded("large")) < LARGE // 2, "the large job has most of its work left"
    assert rabbitmq.status(large)["result"] is None
    gate.touch()
    result = rabbitmq.wait_for_end(large)
    assert rabbitmq.output(result).decode() == names_of(workplace, "large")
    assert len(workplace.recorded("large")) == LARGE, "no mini-batch ran twice"
    assert len(workplace.recorded("small")) == SMALL


@pytest.mark.parametrize("lanes", ["after the large job", "before it"])
def test_killed_worker_with_two_jobs_loses_nothing(workplace, rabbitmq, lanes):
    gate = workplace.folder / "gate"
    gate.touch()
    count = 300
    both = [("large", count, LARGE_SCRIPT), ("small", count // 3, SMALL_SCRIPT)]
    ordered = both if lanes.startswith("after") else both[::-1]
    jobs = {own[0]: rabbitmq.enqueue(workplace.job_of_its_own(*own)) for own in ordered}
    rabbitmq.reducer()
    variables = {"GATE": str(gate), "SLEEP": "0.01"}
    first = rabbitmq.worker("--process-count", 2, **variables)
    wait_until(lambda: workplace.recorded("large") and workplace.recorded("small"), "runs of both jobs")
    first.process.kill()
    first.process.wait()
    rabbitmq.worker("--process-count", 2, **variables)
    for name, job in jobs.items():
        result = rabbitmq.wait_for_end(job)
        assert rabbitmq.output(result).decode() == names_of(workplace, name)
        assert result["mini_batches"]["failed"] == 0, json.dumps(result)
