"""Every state of a real job: the command line and the portal say the same, and no tab of its page is blank or wrong.

Jobs with damaged files are in `tests/portal/test_real_damage.py`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import urllib.error
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from harness import FAILED, HOLDS, Job, Running, Workplace, go, wait_until, write_slow_package
from job_views import Expected, JobViews, Plan
from scrape import is_free
from targets import Target

pytestmark = pytest.mark.xdist_group("page")

Look = Callable[..., JobViews]

ECHOES = "def run(files): return files"
PLACES = ["here", "target"]
SHOWS_ALL = "`gristmill jobs --target sqlite` shows all jobs"
NOT_TO_BE_FOUND = "no-such-package-gristmill @ file:///nowhere/at/all\n"


class Views(JobViews):
    """Waits for the portal before it starts processes."""

    def await_state(self, job_id: str, state: str, says: str, seconds: float = 60) -> None:
        def is_shown() -> bool:
            with contextlib.suppress(urllib.error.HTTPError):
                job = self.portal.get(f"/jobs/{job_id}")
                return job["state"] == state and says in job["sentence"]
            return False

        # What follows fails with more words.
        with contextlib.suppress(AssertionError):
            wait_until(is_shown, f"{state}: {says}", seconds)
        super().await_state(job_id, state, says, seconds)


@pytest.fixture
def look(workplace: Workplace, open_page: Callable[..., Page], axe: str) -> Look:
    """Opens the portal of this machine, or of a target."""

    def opened(target: Target | None = None) -> JobViews:
        return Views(workplace, open_page, axe, target)

    return opened


def held(workplace: Workplace, count: int, **settings: object) -> Job:
    """Returns a job whose script holds the files from HOLD on until `go`."""
    workplace.data(count)
    return workplace.job(HOLDS, run_invocation_timeout=600, speculation=False, **settings)


def hold_here(workplace: Workplace, count: int = 3, hold: int = 2) -> tuple[str, Running]:
    """Starts a job on this machine, and returns it when it holds a file."""
    running = held(workplace, count).start(HOLD=f"{hold:03}.txt")
    running.wait_for_record("held")
    [job_id] = workplace.job_ids()
    return job_id, running


def hold_there(workplace: Workplace, target: Target, count: int = 3, hold: int = 2) -> tuple[str, Running, Running]:
    """Returns a job of a target of which a worker holds a file, with its reducer and its worker."""
    reducer = target.reducer()
    worker = target.worker("--process-count", 1, "--node", "one", "--grace", 600, HOLD=f"{hold:03}.txt")
    job_id = target.enqueue(held(workplace, count))
    worker.wait_for_record("held")
    return job_id, reducer, worker


def run(workplace: Workplace, target: Target | None, job: Job, expect: int = 0) -> str:
    """Runs a job to its end, here or on a target with one worker, and returns its id."""
    if target is None:
        return job.run(expect=expect).job_id
    target.reducer()
    target.worker("--process-count", 1, "--node", "one")
    job_id = target.enqueue(job)
    target.wait_for_end(job_id, "Failed" if expect == FAILED else "Completed")
    return job_id


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Target | None:
    """A target, or `None` for this machine."""
    return request.getfixturevalue("sqlite") if request.param == "target" else None


def test_job_whose_environment_is_being_made(workplace: Workplace, place: Target | None, look: Look) -> None:
    workplace.data(2)
    package = write_slow_package(workplace)
    job = workplace.job(ECHOES, environment="requirements.txt")
    if place is None:
        job.start()
        [job_id] = wait_until(workplace.job_ids, "the job")
    else:
        place.reducer()
        place.worker("--node", "one")
        job_id = place.enqueue(job)
    nodes = () if place is None else ("one",)
    expected = Expected("Running", "making the Python environment", (2, 0, 0), can_cancel=True, nodes=nodes)
    try:
        look(place).check(job_id, expected)
    finally:
        (package / "go").touch()


def test_job_whose_last_mini_batch_runs_and_is_canceled(workplace: Workplace, place: Target | None, look: Look) -> None:
    job_id = hold_here(workplace)[0] if place is None else hold_there(workplace, place)[0]
    views, says = look(place), "2 of 3 mini-batches succeeded"
    views.check(job_id, Expected("Running", says, (3, 2, 0), running=1, can_cancel=True))
    views.command("cancel", job_id)
    views.check(job_id, Expected("Canceled", "canceled by the user", (3, 2, 0), can_retry=True))


def test_job_whose_process_is_stopped_goes_on_and_stops_after_its_running_mini_batch(
    workplace: Workplace, look: Look
) -> None:
    job_id, running = hold_here(workplace)
    views = look()
    views.await_state(job_id, "Running", "2 of 3")
    running.send(signal.SIGSTOP)
    says = "the process that runs it has not been heard from since "
    views.check(job_id, Expected("Waiting", says, (3, 2, 0), running=1, can_cancel=True))
    running.send(signal.SIGCONT)
    views.await_state(job_id, "Running", "2 of 3")
    running.send(signal.SIGINT)
    wait_until(lambda: b"stopping" in (running.process.stderr.readline() or b""), "the engine notices the signal")
    says = "2 of 3 mini-batches succeeded"
    views.check(job_id, Expected("Running", says, (3, 2, 0), running=1, can_cancel=True))


def test_job_whose_process_was_killed_and_that_is_canceled_then(workplace: Workplace, look: Look) -> None:
    job_id = held(workplace, 3).interrupt("002.txt", 2)
    says, remedy = "the process that ran it has ended", "continue with: gristmill retry"
    views = look()
    views.check(job_id, Expected("Interrupted", says, (3, 2, 0), remedy, can_cancel=True, can_retry=True))
    views.command("cancel", job_id)
    says = "canceled by the user after the process that ran it had ended"
    views.check(job_id, Expected("Canceled", says, (3, 2, 0), can_retry=True))


def test_job_that_waits_for_the_limits_of_a_service(workplace: Workplace, look: Look) -> None:
    workplace.data(2)
    script = "def run(files, context):\n    context.limit.acquire()\n    return files"
    workplace.job(script, limits={"requests_per_minute": 1}).start()
    [job_id] = wait_until(workplace.job_ids, "the job")
    says = "waiting for the limits of the job"
    look().check(job_id, Expected("Running", says, (2, 0, 0), running=1, can_cancel=True))


def test_job_whose_environment_cannot_be_made(workplace: Workplace, place: Target | None, look: Look) -> None:
    workplace.data(2)
    workplace.write({"bad.txt": NOT_TO_BE_FOUND})
    job_id = run(workplace, place, workplace.job(ECHOES, environment="bad.txt"), expect=FAILED)
    nodes = () if place is None else ("one",)
    look(place).check(job_id, Expected("Failed", "/nowhere/at/all", (2, 0, 0), can_retry=True, nodes=nodes))


def test_job_whose_script_cannot_start(workplace: Workplace, place: Target | None, look: Look) -> None:
    workplace.data(2)
    script = "def init(): raise ValueError('there is no model')\ndef run(files): return files"
    job_id = run(workplace, place, workplace.job(script), expect=FAILED)
    nodes = ("0",) if place is None else ("one",)
    look(place).check(job_id, Expected("Failed", "there is no model", (2, 0, 0), can_retry=True, nodes=nodes))


def test_job_that_cannot_be_planned(workplace: Workplace, sqlite: Target, look: Look) -> None:
    workplace.write({"tables/7.csv": "id\n1\n"})
    table = {"name": "data", "type": "tabular", "path": "tables", "partition_format": "{id}.csv"}
    job = workplace.job("def run(frame): return frame", inputs=[table])
    job_id = sqlite.command("enqueue", job.file).stdout.strip()
    sqlite.reducer()
    sqlite.wait_for_end(job_id, "Failed")
    says = "the column 'id' appears in the files and in partition_format"
    look(sqlite).check(job_id, Expected("Failed", says, can_retry=True, plan=Plan.PARTIAL))


def test_job_without_items(workplace: Workplace, place: Target | None, look: Look) -> None:
    """A folder without files is refused before there is a job."""
    workplace.write({"table.csv": "a,b\n"})
    table = {"name": "data", "type": "tabular", "path": "table.csv"}
    job = workplace.job("def run(frame): return frame", inputs=[table])
    job_id = run(workplace, place, job, expect=FAILED)
    look(place).check(job_id, Expected("Failed", "The inputs contain no items", (1, 1, 0), can_retry=True))


def test_job_of_one_item(workplace: Workplace, place: Target | None, look: Look) -> None:
    workplace.data(1)
    job_id = run(workplace, place, workplace.job(ECHOES))
    look(place).check(job_id, Expected("Completed", "1 mini-batch succeeded", (1, 1, 0)))


def test_job_that_no_reducer_has_seen_and_that_has_no_workers_then(
    workplace: Workplace, sqlite: Target, look: Look
) -> None:
    job_id, views = sqlite.enqueue(held(workplace, 3)), look(sqlite)
    says, remedy = "no reducer has looked at it yet", "start one with: gristmill reducer --target sqlite"
    views.check(job_id, Expected("Queued", says, remedy=remedy, can_cancel=True, plan=Plan.UNREAD))
    sqlite.reducer()
    says, remedy = "no worker is running", "start one with: gristmill worker --target sqlite"
    views.check(job_id, Expected("Queued", says, (3, 0, 0), remedy, can_cancel=True))


def test_job_that_no_worker_fits(workplace: Workplace, sqlite: Target, look: Look) -> None:
    sqlite.reducer()
    sqlite.worker("--node", "one", "--label", "zone=a")
    job_id = sqlite.enqueue(held(workplace, 3, requires={"labels": {"zone": "b"}}))
    says = "the only worker, one, does not meet `requires` (label zone=b): its label zone is a, the job requires b"
    remedy = "start one with: gristmill worker --target sqlite --label zone=b"
    look(sqlite).check(job_id, Expected("Queued", says, (3, 0, 0), remedy, can_cancel=True))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "the target may run 0 jobs at a time, and runs 0 (quota of the target)"),
        (("--owner", "ana"), "owner ana may run 0 jobs at a time, and runs 0 (quota of the target)"),
    ],
    ids=["target", "owner"],
)
def test_job_above_a_limit_of_jobs(
    workplace: Workplace, sqlite: Target, look: Look, flags: tuple[str, ...], says: str
) -> None:
    sqlite.command("target", "quota", *flags, "--max-jobs", 0, expect=0)
    sqlite.reducer()
    job_id = sqlite.enqueue(held(workplace, 3, owner="ana"))
    look(sqlite).check(job_id, Expected("Queued", says, remedy=SHOWS_ALL, can_cancel=True, plan=Plan.UNREAD))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--each-owner", "--max-in-flight", 1), "owner ana has 1 of 1 mini-batches in flight (quota of the target)"),
        ((), "other jobs have all processes that it could use"),
    ],
    ids=["in flight", "other jobs"],
)
def test_job_behind_another(
    workplace: Workplace, sqlite: Target, look: Look, flags: tuple[object, ...], says: str
) -> None:
    if flags:
        sqlite.command("target", "quota", *flags, expect=0)
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 2 if flags else 1, "--node", "one")
    settings = {"owner": "ana", "run_invocation_timeout": 600}
    sqlite.enqueue(workplace.job_of_its_own("first", 3, HOLDS, **settings))
    worker.wait_for_record("held")
    job_id = sqlite.enqueue(workplace.job_of_its_own("second", 3, HOLDS, **settings))
    look(sqlite).check(job_id, Expected("Queued", says, (3, 0, 0), SHOWS_ALL, can_cancel=True))


def watched(workplace: Workplace, target: Target, look: Look) -> tuple[JobViews, str, Running, Running]:
    """Returns all views of a job that holds its last mini-batch, the job, its reducer and its worker."""
    job_id, reducer, worker = hold_there(workplace, target)
    views = look(target)
    views.await_state(job_id, "Running", "2 of 3")
    # Without a reducer, the views show the last progress that it wrote.
    wait_until(lambda: target.progress(job_id).get("running"), "progress that names what runs")
    return views, job_id, reducer, worker


def test_job_whose_reducer_was_killed_and_that_is_canceled_then(
    workplace: Workplace, sqlite: Target, look: Look
) -> None:
    views, job_id, reducer, _ = watched(workplace, sqlite, look)
    reducer.kill()
    says = "no reducer has been heard from since "
    views.check(job_id, Expected("Waiting", says, (3, 2, 0), running=1, can_cancel=True))
    sqlite.command("cancel", job_id)
    views.check(job_id, Expected("Canceling", says, (3, 2, 0), running=1))
    sqlite.reducer()
    sqlite.wait_for_end(job_id, "Canceled")


def test_job_whose_worker_was_killed(workplace: Workplace, sqlite: Target, look: Look) -> None:
    views, job_id, _, worker = watched(workplace, sqlite, look)
    worker.kill()
    says = "no worker has been heard from since "
    views.check(job_id, Expected("Waiting", says, (3, 2, 0), can_cancel=True))


def test_job_whose_worker_ends_after_its_running_mini_batch(workplace: Workplace, sqlite: Target, look: Look) -> None:
    views, job_id, _, worker = watched(workplace, sqlite, look)
    worker.send(signal.SIGTERM)

    def is_known() -> bool:
        return not json.loads(sqlite.objects("workers/one")["workers/one"])["accepts_work"]

    wait_until(is_known, "a worker that takes no more work")
    at = sqlite.progress(job_id)["at"]
    wait_until(lambda: sqlite.progress(job_id)["at"] > at + 4000, "a reducer that has seen it")
    says = "2 of 3 mini-batches succeeded"
    views.check(job_id, Expected("Running", says, (3, 2, 0), running=1, can_cancel=True), seconds=5)
    go(workplace)
    sqlite.wait_for_end(job_id)


def publishing(workplace: Workplace, target: Target) -> str:
    """Returns a job that is being planned by a command that is stopped."""
    # Enough files that the test stops the command before it has planned all of them.
    workplace.data(20_000)
    enqueuing = target.start("enqueue", workplace.job(ECHOES).file)
    jobs = target.folder / "store/jobs"
    [begun] = wait_until(lambda: list(jobs.glob("*/plan/planning")), "the begin of the plan")

    def is_stopped() -> bool:
        """Stops it while it holds no lock of a queue, which would block the other roles."""
        enqueuing.send(signal.SIGSTOP)
        if all(is_free(queue) for queue in (target.folder / "queues").glob("*.db")):
            return True
        enqueuing.send(signal.SIGCONT)
        return False

    wait_until(is_stopped, "a moment without a lock")
    job_id = begun.parents[1].name
    plan = {name.rpartition("/")[2] for name in target.objects(f"jobs/{job_id}/plan/")}
    assert plan <= {"identity.json", "planning", "schemas.json"}, "nothing is planned yet"
    return job_id


def test_job_that_is_being_published(workplace: Workplace, sqlite: Target, look: Look) -> None:
    job_id = publishing(workplace, sqlite)
    sqlite.reducer()
    sqlite.worker("--process-count", 1, "--node", "one")
    wait_until(lambda: sqlite.progress(job_id).get("processes"), "a worker that has begun")
    says = "not all are planned yet"
    look(sqlite).check(job_id, Expected("Running", says, can_cancel=True, plan=Plan.PARTIAL, nodes=("one",)))


def test_job_that_is_canceled_while_it_is_being_published(workplace: Workplace, sqlite: Target, look: Look) -> None:
    job_id = publishing(workplace, sqlite)
    sqlite.command("cancel", job_id, expect=0)
    sqlite.reducer()
    sqlite.wait_for_end(job_id, "Canceled")
    look(sqlite).check(job_id, Expected("Canceled", "canceled by the user", can_retry=True, plan=Plan.PARTIAL))


def test_job_that_was_interrupted_before_it_was_published(workplace: Workplace, sqlite: Target, look: Look) -> None:
    """As if `enqueue` had been killed after it had described the job, and before it had opened it."""
    job_id = sqlite.enqueue(held(workplace, 3))
    store = sqlite.folder / "store"
    (store / "open" / job_id).unlink()
    shutil.rmtree(store / "jobs" / job_id / "plan")
    says, remedy = "it was interrupted before anything was published", f"continue with: gristmill retry {job_id}"
    expected = Expected("Interrupted", says, remedy=remedy, can_cancel=True, can_retry=True, plan=Plan.PARTIAL)
    look(sqlite).check(job_id, expected)
    sqlite.reducer()
    sqlite.command("cancel", job_id, expect=0)
    sqlite.wait_for_end(job_id, "Canceled")
