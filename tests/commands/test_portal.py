"""The portal answers as `gristmill status` does, in every state, and gives nothing to those without its token."""

from __future__ import annotations

import gzip
import http.cookiejar
import json
import re
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest

from harness import COMPLETED, ERROR, FAILED, INVALID, Workplace, go, wait_until
from portal_client import FAILS_ON_ONE, HOLDS, Portal


def same(workplace: Workplace, portal: Portal, job_id: str) -> dict[str, Any]:
    """Returns the job in the portal, whose fields must be those of `status --json`."""
    status = json.loads(workplace.command("status", job_id, "--json").stdout)
    job = portal.get(f"/jobs/{job_id}")
    assert {key: job[key] for key in status} == status
    return job


def test_ended_job_shows_the_same_as_status(workplace, portal):
    workplace.data(6)
    ended = workplace.job(FAILS_ON_ONE, error_threshold=0, run_max_try=2).run(expect=FAILED)
    job_id = ended.job_id
    job = same(workplace, portal, job_id)
    assert job["sentence"].startswith("Failed after ") and "error threshold 0" in job["sentence"], job["sentence"]
    assert job["first_failed"] == 3 and job["can_retry"] and not job["can_cancel"]
    assert job["failures"][0]["error"] == "ValueError: three is <b>bad</b>", job["failures"]

    [row] = portal.get(f"/jobs/{job_id}/mini-batches?state=failed")["rows"]
    assert (row["mini_batch"], row["tries"], row["error"]) == (3, 2, "ValueError: three is <b>bad</b>")
    assert row["detail"].endswith("003.txt")
    mini_batch = portal.get(f"/jobs/{job_id}/mini-batches/3")
    assert [attempt["status"] for attempt in mini_batch["attempts"]] == ["run_raised"] * 2
    phases = [phase["name"] for phase in mini_batch["attempts"][1]["phases"]]
    # The time to report may be too short to count.
    assert phases in (["waited", "loaded", "ran", "reported"], ["waited", "loaded", "ran"]), phases
    error = mini_batch["attempts"][1]["error"]
    assert error["frames"][-1]["user"] and error["frames"][-1]["function"] == "run", error
    assert "reading <b>" in error["printed"], error
    assert mini_batch["items"]["shown"][0]["path"].endswith("data/003.txt")
    assert any("user/stdout" in log["path"] for log in mini_batch["attempts"][0]["logs"]), mini_batch["attempts"]
    for number, tries in ((0, 1), (3, 2)):
        attempts = portal.get(f"/jobs/{job_id}/mini-batches/{number}")["attempts"]
        printed = [[part["text"] for part in attempt["printed"]] for attempt in attempts]
        assert printed == [[f"reading <b> {workplace.folder}/data/{number:03}.txt\n"]] * tries

    first = portal.get(f"/jobs/{job_id}/logs")["first_error"]
    assert "three is <b>bad</b>" in first["text"]
    text = portal.get(f"/jobs/{job_id}/logs/text?path={first['path']}&from={first['offset']}")["text"]
    assert text.startswith(first["text"][:40])


def test_completed_job_shows_rows_output_and_how_often_it_was_reused(workplace, portal):
    workplace.data(5)
    again = workplace.job(HOLDS, allow_reuse=True)
    ended = again.run()
    before = time.time() * 1000
    assert [again.run().job_id for _ in range(2)] == [ended.job_id, ended.job_id]
    job = same(workplace, portal, ended.job_id)
    assert job["sentence"].startswith("Completed in "), job["sentence"]
    reused = job["lineage"]["reused"]
    assert reused["count"] == 2 and len(reused["times"]) == 2, reused
    assert before <= reused["times"][0] <= reused["times"][1] <= job["now"]
    output = portal.get(f"/jobs/{ended.job_id}/output")
    assert output["available"] and output["cells"][0] == ["row of 000.txt"], output
    with portal.open(f"/api/v1/jobs/{ended.job_id}/output/raw") as download:
        assert download.headers["content-disposition"] == 'attachment; filename="rows.txt"'
        assert download.read() == ended.output
    rows = portal.get(f"/jobs/{ended.job_id}/mini-batches/2")["rows"]
    assert rows["text"] == "row of 002.txt\n", rows
    timeline = portal.get(f"/jobs/{ended.job_id}/timeline")
    assert len(timeline["bars"]["mini_batch"]) == 5 and not any(timeline["bars"]["copy"])
    durations = [percentiles["of"] for percentiles in timeline["percentiles"]]
    assert durations == ["elapsed", "waited", "prepared", "loaded", "run", "reported", "cpu"], durations
    assert sum(portal.get(f"/jobs/{ended.job_id}/series")["succeeded"]) == 5
    assert portal.get("/jobs?state=completed")["jobs"][0]["job_id"] == ended.job_id
    assert portal.get("/jobs?state=failed")["jobs"] == []
    with portal.open("/") as page:
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src 'self'" in page.headers["content-security-policy"]
        script = re.search(rb'src="([^"]+\.js)"', page.read()).group(1).decode()
    with (
        portal.open("/" + script.lstrip("./"), accept_encoding="gzip") as compressed,
        portal.open("/" + script.lstrip("./")) as plain,
    ):
        assert compressed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(compressed.read()) == plain.read()


def test_mini_batch_shows_its_first_hundred_rows(workplace, portal):
    workplace.data(150)
    ended = workplace.job("def run(files): return list(range(len(files)))", mini_batch_size=150).run()
    rows = portal.get(f"/jobs/{ended.job_id}/mini-batches/0")["rows"]
    assert rows["truncated"] and rows["text"].splitlines() == [str(row) for row in range(100)]


def test_running_job_is_live_and_can_be_canceled_and_continued(workplace, portal):
    workplace.data(4)
    running = workplace.job(HOLDS).start(HOLD="002.txt")
    running.wait_for_record("held")
    [job_id] = workplace.job_ids()

    def two() -> bool:
        return portal.get(f"/jobs/{job_id}")["mini_batches"]["succeeded"] == 2

    wait_until(two, "two mini-batches in the portal")
    job = portal.get(f"/jobs/{job_id}")
    assert job["state"] == "Running" and job["can_cancel"] and job["sentence"].startswith("Running for "), job[
        "sentence"
    ]
    map_before = portal.get(f"/jobs/{job_id}/map")
    assert map_before["total"] == 4 and map_before["chunks"][0]["bytes"].startswith("AQEA"), map_before
    events = portal.open(f"/api/v1/events?job={job_id}")
    assert events.readline() == b"event: job\n"
    assert re.match(rb"id: \d+\n", events.readline())

    status, answer = portal.post(f"/jobs/{job_id}/cancel")
    assert (status, answer["state"]) in [(200, "requested"), (200, "canceled")], answer
    go(workplace)
    assert running.wait().state == "Canceled"
    wait_until(lambda: portal.get(f"/jobs/{job_id}")["state"] == "Canceled", "the end in the portal")
    job = same(workplace, portal, job_id)
    assert job["sentence"].startswith("Canceled after ") and job["can_retry"], job
    changed = portal.get(f"/jobs/{job_id}/map?since={urllib.parse.quote(map_before['revision'])}")
    assert len(changed["chunks"]) <= 1

    status, answer = portal.post(f"/jobs/{job_id}/retry")
    assert status == 202, answer
    wait_until(lambda: portal.get(f"/jobs/{job_id}")["state"] == "Completed", "the end of the continued job")
    job = same(workplace, portal, job_id)
    assert len(job["lineage"]["rounds"]) == 2 and job["mini_batches"]["succeeded"] == 4
    status, answer = portal.post(f"/jobs/{job_id}/cancel")
    assert (status, answer["state"]) == (200, "ended")


def test_interrupted_job_shows_what_was_committed(workplace, portal):
    workplace.data(4)
    job = workplace.job(HOLDS)
    job_id = job.interrupt(hold="003.txt", committed=3)
    shown = same(workplace, portal, job_id)
    assert shown["state"] == "Interrupted" and shown["mini_batches"]["succeeded"] == 3
    assert f"gristmill retry {job_id}" in shown["hint"]
    go(workplace)
    job.retry(job_id)
    time.sleep(0.5)
    assert same(workplace, portal, job_id)["state"] == "Completed"


def test_pages_of_the_list_have_every_job_once(workplace, portal):
    workplace.data(1)
    job = workplace.job(HOLDS)
    first = job.run().job_id
    name, date, second, own = first.split("-")
    # Ids begin with a time in seconds, by which the list is sorted.
    others = [
        f"{name}-{date}-{second}-{int(own, 16) ^ 1:0{len(own)}x}",
        *(f"{name}-2020010{day}-{second}-{own}" for day in (1, 2, 3)),
    ]
    for other in others:
        workplace.copy_of(first, other)
    order = sorted([first, *others], key=lambda id: (id.split("-")[1:3], id), reverse=True)

    def page(after: str = "") -> tuple[list[str], str | None]:
        found = portal.get(f"/jobs?limit=2{after and f'&after={after}'}")
        return [row["job_id"] for row in found["jobs"]], found["next"]

    assert portal.get("/jobs?limit=2")["total"] == 5
    assert page() == (order[:2], order[1])
    wait_until(lambda: time.strftime("%H%M%S", time.gmtime()) != order[0].split("-")[2], "the next second")
    added = job.run().job_id
    assert page(after=order[1]) == (order[2:4], order[3]), "a new job moves nothing to another page"
    shutil.rmtree(workplace.home / "jobs" / order[3])
    assert page(after=order[3]) == (order[4:], None), "the page after a job that was removed"
    assert page() == ([added, order[0]], order[0])


def test_removed_job_and_restarted_portal(workplace):
    workplace.data(1)
    job_id = workplace.job(HOLDS).run().job_id
    token = "token-of-this-test"
    portal = Portal(workplace, GRISTMILL_PORTAL_TOKEN=token)
    assert portal.token == "", "a chosen token is not printed"
    portal.token = token
    revision = portal.get(f"/jobs/{job_id}")["revision"]
    portal.running.kill()
    port = urllib.parse.urlsplit(portal.url).port
    again = Portal(workplace, port=port, GRISTMILL_PORTAL_TOKEN=token)
    again.token = token
    assert again.get(f"/jobs/{job_id}")["revision"] != revision, "a page fetches everything again"
    events = again.open(f"/api/v1/events?job={job_id}")
    assert events.readline() == b"event: job\n"
    shutil.rmtree(workplace.home / "jobs" / job_id)
    wait_until(lambda: events.readline() == b"event: removed\n", "the end of the stream")
    with pytest.raises(urllib.error.HTTPError) as gone:
        again.get(f"/jobs/{job_id}")
    assert gone.value.code == 404 and json.load(gone.value)["removed"]


def test_portal_writes_nothing_into_a_job_whose_report_is_one_file(workplace, portal):
    workplace.data(5)
    job_id = workplace.job(FAILS_ON_ONE).run().job_id
    folder = workplace.home / "jobs" / job_id

    def tree() -> list[tuple[str, int, int]]:
        files = [file for file in sorted(folder.rglob("*")) if file.name != "lock"]
        return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]

    before = tree()
    lists = ("series", "map", "mini-batches", "mini-batches/1", "timeline", "nodes", "logs", "rejects", "output")
    for path in ("", *(f"/{name}" for name in lists)):
        portal.get(f"/jobs/{job_id}{path}")
    assert tree() == before

    made = workplace.command("report", job_id, "--html", "report.html")
    assert made.exit_status == COMPLETED and made.stdout == "report.html\n", made
    html = (workplace.folder / "report.html").read_text()
    assert " src=" not in html and "<b>bad" not in html
    data = re.search(r'<script type="application/json" id="report">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    answers = json.loads(data.group(1))["answers"]
    assert answers[f"/jobs/{job_id}"]["mini_batches"] == {"total": 5, "succeeded": 4, "failed": 1}
    assert answers[f"/jobs/{job_id}/mini-batches/3"]["state"] == "failed"
    (group,) = answers[f"/jobs/{job_id}/rejects"]["groups"]
    assert (group["items"], group["exception"], group["first"]["mini_batch"]) == (1, "ValueError", 3)
    assert json.loads(workplace.command("report", job_id).stdout)["answers"].keys() == answers.keys()


def test_only_the_token_opens_the_portal(workplace, portal):
    assert portal.refusal("/api/v1/jobs", authorization="") == 401
    assert portal.refusal("/api/v1/jobs", authorization=f"Bearer {portal.token[:-1]}x") == 401
    assert portal.refusal("/api/v1/jobs", host="evil.example") == 403
    assert portal.refusal("/api/v1/jobs", origin="http://evil.example") == 403
    cookies = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    with browser.open(portal.address) as page:
        assert page.url == portal.url + "/", "the token leaves the address"
    [cookie] = cookies
    assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "Strict"
    with browser.open(portal.url + "/api/v1/jobs") as answer:
        assert json.load(answer)["jobs"] == []

    refused = workplace.command("portal", "--no-open", "--listen", "0.0.0.0:0")
    assert refused.exit_status == INVALID and "GRISTMILL_PORTAL_TOKEN" in refused.stderr, refused
    read_only = Portal(workplace, "--read-only")
    assert read_only.post("/doctor")[0] == 403
    trusting = Portal(workplace, "--trust-header", "X-User")
    assert trusting.address.endswith("/") and trusting.refusal("/api/v1/jobs") == 401
    with trusting.open("/api/v1/jobs", x_user="me") as answer:
        assert answer.status == 200


def test_slow_and_large_requests_are_bounded(portal):
    address = ("127.0.0.1", urllib.parse.urlsplit(portal.url).port)
    with socket.create_connection(address) as client:
        client.sendall(b"GET /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"x" * 200_000)
        assert b"431" in client.recv(200)
    idle = [socket.create_connection(address) for _ in range(50)]
    assert portal.get("/jobs")["jobs"] == [], "idle connections do not keep others out"
    for client in idle:
        client.close()


def test_port_that_is_taken(workplace):
    """A portal without an address takes the next free one."""

    def start() -> urllib.parse.SplitResult:
        running = workplace.start("portal", "--no-open")
        return urllib.parse.urlsplit(running.process.stdout.readline().decode().strip())

    first = start()
    assert first.hostname == "127.0.0.1" and 7780 <= first.port < 7800, first
    with socket.create_connection((first.hostname, first.port), timeout=60):
        second = start()
    assert first.port < second.port < 7800, second
    taken = workplace.command("portal", "--no-open", "--listen", f"127.0.0.1:{first.port}")
    assert taken.exit_status == ERROR and "choose another with --listen" in taken.stderr, taken


def test_run_prints_the_address_of_its_page(workplace):
    workplace.data(2)
    running = workplace.start("run", workplace.job(HOLDS).file, "--portal", HOLD="001.txt")
    running.wait_for_record("held")
    portal = Portal.of(running)
    [job_id] = workplace.job_ids()
    assert portal.get("/info")["job"] == job_id
    assert portal.get(f"/jobs/{job_id}")["state"] == "Running"
    go(workplace)
    assert running.wait().exit_status == COMPLETED


@pytest.mark.parametrize("kind", ["sqlite", "sqs"])
def test_target_shows_jobs_and_queues(workplace, kind, request):
    served = request.getfixturevalue(kind)
    workplace.data(2)
    job_id = served.enqueue(workplace.job(HOLDS))
    portal = Portal(workplace, "--target", served.name)
    job = portal.get(f"/jobs/{job_id}")
    assert job["state"] == "Queued" and "gristmill reducer" in job["hint"], job["hint"]
    target = portal.get("/target")
    assert [(queue["name"], queue["visible"]) for queue in target["queues"]] == [("dead letters", 0)], target
    served.reducer()
    name = f"tasks of {job_id}"

    def visible() -> int | None:
        return next((queue["visible"] for queue in portal.get("/target")["queues"] if queue["name"] == name), None)

    wait_until(lambda: visible() == 2, "the messages of the job")
    served.worker("--node", "first", "--label", "zone=a")
    served.worker("--node", "second")

    def listed() -> dict[str, Any]:
        return {worker["node"]: worker["offer"] for worker in portal.get("/target")["workers"]}

    wait_until(lambda: listed().keys() == {"first", "second"}, "both workers")
    workers = listed()
    assert workers["first"]["labels"] == {"zone": "a"} and workers["second"]["processors"] > 0, workers
    served.wait_for_end(job_id)
    wait_until(lambda: portal.get(f"/jobs/{job_id}")["state"] == "Completed", "the end in the portal")
    assert portal.get(f"/jobs/{job_id}/mini-batches")["matching"] == 2
