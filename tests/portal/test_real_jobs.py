"""The page before the real server, on real jobs: running, failed, canceled, interrupted and continued."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from harness import CANCELED, FAILED, Workplace, go, wait_until
from page_client import scroll_up, show
from portal_client import Portal
from targets import Target

pytestmark = pytest.mark.xdist_group("page")

# The first file is printed with colours and markup; each file from HOLD on waits; the file 003 fails.
SCRIPT = """
    import os, sys
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        print(f"\\x1b[32mreading\\x1b[0m <b>{name}</b>")
        sys.stdout.flush()
        if name >= os.environ.get("HOLD", "999.txt") and not name.startswith("<"):
            record("held", pid=os.getpid())
            wait_for(lambda: recorded("go"))
        if "003" in name:
            raise ValueError("three is <img src=x onerror=\\"document.title='broken in'\\">")
        return [f"{name},<b>{len(name)}</b>"]
"""
# Lines with characters of several bytes, and bytes that are no text.
PRINTS_MUCH = """
    import os
    def run(files):
        for number in range(12000):
            end = bytes([number % 256]) + b"\\xff" if number % 1000 == 7 else b"ok"
            os.write(1, f"prüfe {number:05} {number:#08x}ff {'ü' * 40} ".encode() + end.replace(b"\\n", b"") + b"\\n")
        return ["row"]
"""
# The file 001 fails until it is mended.
MENDED = """
    import os
    from recorder import recorded
    def run(files):
        name = os.path.basename(files[0])
        if "001" in name and not recorded("go"):
            raise ValueError("it is not mended yet")
        return [f"row of {name}"]
"""
HOSTILE = "<img src=x onerror=alert(1)> 003 \x1b[31mred\x1b[0m.txt"


def test_failed_job_is_explained_on_every_page(
    workplace: Workplace, portal: Portal, open_page: Callable[..., Page]
) -> None:
    workplace.data(12)
    workplace.write({f"data/{HOSTILE}": "x"})
    job_id = workplace.job(SCRIPT, error_threshold=0, run_max_try=2).run(expect=FAILED).job_id
    page = open_page(portal.address)
    page.get_by_role("link", name="test").click()
    expect(page.locator(".sentence")).to_contain_text("error threshold 0")
    expect(page).to_have_url(re.compile(f"#/jobs/{job_id}$"))
    assert "token" not in page.url
    failed = page.locator(".panel").filter(has_text="What failed, by cause")
    expect(failed.locator(".item").first).to_contain_text("ValueError: three is <img")
    expect(failed.get_by_role("link", name="Table of all items")).to_be_visible()
    page.get_by_role("link", name="Open the first").click()
    expect(page.locator("h2.big + .badge.bad")).to_be_visible()
    expect(page.locator(".frames .first").first).to_contain_text("entry.py")
    expect(page.get_by_text("Try 2")).to_be_visible()
    expect(page.get_by_role("group", name="What the attempt printed").first).to_contain_text("reading <b>")
    page.get_by_role("button", name="Run it again").click()
    page.get_by_role("button", name="Leave it").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Run it again").click()
    page.get_by_role("button", name="Start the job").click()
    expect(page.get_by_role("heading", name=re.compile("^test-"), level=1)).to_be_visible()
    expect(page.locator(".title .badge")).to_have_text("Failed")
    page.go_back()
    show(page, f"jobs/{job_id}/mini-batches/0")
    printed = page.get_by_role("group", name="What the attempt printed to standard output")
    expect(printed).to_have_text("reading <b>000.txt</b>")
    page.go_back()
    page.locator(".links a").filter(has_text="stdout").first.click()
    expect(page.locator(".log .a-f2").first).to_have_text("reading")
    expect(page.locator(".log")).to_contain_text("<b>003.txt</b>")
    page.get_by_role("link", name="First error").click()
    expect(page.locator(".log-line.marked")).to_be_visible()
    page.get_by_role("searchbox").fill("three is")
    expect(page.locator(".matches li").first).to_contain_text("three is <img")
    show(page, f"jobs/{job_id}/mini-batches")
    expect(page.locator(".batches tbody tr").first).to_contain_text("failed")
    expect(page.locator(".batches tbody tr").first).to_contain_text("ValueError: three is <img")
    counts = json.loads(workplace.command("status", job_id, "--json").stdout)["result"]["mini_batches"]
    expect(page.locator(".key.bad")).to_have_text(f"failed {counts['failed']}")
    for tab, text in (("timeline", "Durations"), ("nodes", "Processes"), ("output", "There is no output")):
        show(page, f"jobs/{job_id}/{tab}")
        expect(page.get_by_text(text).first).to_be_visible()
    show(page, "target")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert page.title() != "broken in"
    assert page.locator("#app img, #app script").count() == 0


def test_running_job_is_live_is_canceled_and_continued(
    workplace: Workplace, portal: Portal, open_page: Callable[..., Page]
) -> None:
    workplace.data(3)
    running = workplace.job(SCRIPT).start(HOLD="002.txt")
    running.wait_for_record("held")
    page = open_page(portal.address)
    page.get_by_role("link", name="test").click()
    expect(page.locator(".title .badge")).to_have_text("Running")
    progress = page.locator(".fact").filter(has_text="Succeeded").first
    expect(progress).to_contain_text("2 of 3")
    # Another tab of the same browser follows.
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".title .badge")).to_have_text("Running")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    assert running.wait().exit_status == CANCELED
    expect(page.locator(".title .badge")).to_have_text("Canceled")
    expect(other.locator(".title .badge")).to_have_text("Canceled")
    go(workplace)
    other.get_by_role("button", name="Retry").click()
    other.get_by_role("button", name="Retry the job").click()
    expect(page.locator(".title .badge")).to_have_text("Completed", timeout=60_000)
    expect(other.locator(".title .badge")).to_have_text("Completed")
    expect(progress).to_contain_text("3 of 3")
    page.locator(".tabs").get_by_role("link", name="Output").click()
    expect(page.locator(".sheet")).to_contain_text("000.txt,<b>7</b>")
    page.locator(".tabs").get_by_role("link", name="Mini-batches").click()
    page.locator(".batches a").first.click()
    expect(page.get_by_text("its rows count")).to_be_visible()


def test_killed_portal_is_reported_and_its_successor_catches_up(
    workplace: Workplace, open_page: Callable[..., Page]
) -> None:
    workplace.data(6)
    job = workplace.job(SCRIPT)
    job_id = job.interrupt("003.txt", 3)
    token = "token-of-this-test"
    portal = Portal(workplace, GRISTMILL_PORTAL_TOKEN=token)
    page = open_page(f"{portal.url}/?token={token}")
    expect(page.get_by_text("Interrupted").last).to_be_visible()
    show(page, f"jobs/{job_id}")
    expect(page.locator(".title .badge")).to_have_text("Interrupted")
    portal.running.kill()
    expect(page.get_by_text("Connection lost")).to_be_visible()
    expect(page.get_by_text("The portal does not answer since")).to_be_visible()
    expect(page.locator(".title .badge")).to_have_text("Interrupted")
    go(workplace)
    job.retry(job_id)
    Portal(workplace, port=int(portal.url.rpartition(":")[2]), GRISTMILL_PORTAL_TOKEN=token)
    expect(page.locator(".title .badge")).to_have_text("Completed")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_text("Connection lost")).to_have_count(0)


def test_lost_store_is_reported_and_shown_data_stays(
    workplace: Workplace, portal: Portal, open_page: Callable[..., Page]
) -> None:
    workplace.data(3)
    job_id = workplace.job(SCRIPT).run().job_id
    page = open_page(portal.address)
    show(page, f"jobs/{job_id}")
    expect(page.locator(".title .badge")).to_have_text("Completed")
    jobs = workplace.home / "jobs"
    jobs.rename(workplace.home / "away")
    expect(page.get_by_text("is not there now").first).to_be_visible()
    expect(page.locator(".title .badge")).to_have_text("Completed")
    (workplace.home / "away").rename(jobs)
    expect(page.get_by_text("is not there now")).to_have_count(0)
    page.locator(".tabs").get_by_role("link", name="Timeline").click()
    expect(page.get_by_text("Durations")).to_be_visible()


def test_log_follows_what_a_script_prints(workplace: Workplace, portal: Portal, open_page: Callable[..., Page]) -> None:
    workplace.data(3)
    running = workplace.job(SCRIPT).start(HOLD="001.txt")
    running.wait_for_record("held")
    [job_id] = workplace.job_ids()
    page = open_page(portal.address)
    show(page, f"jobs/{job_id}/logs?path=user/stdout/0/process000.stdout.txt")
    expect(page.locator(".log")).to_contain_text("reading <b>001.txt</b>")
    assert "002.txt" not in page.locator(".log").inner_text()
    go(workplace)
    expect(page.locator(".log")).to_contain_text("reading <b>002.txt</b>")
    running.wait()
    wait_until(lambda: page.locator(".title .badge").inner_text() == "Completed", "the end of the job is shown")


def test_long_log_with_any_bytes_is_read_up_to_its_first_line(
    workplace: Workplace, portal: Portal, open_page: Callable[..., Page]
) -> None:
    workplace.data(1)
    job_id = workplace.job(PRINTS_MUCH).run().job_id
    # Here is what does not pass through `sys.stdout`.
    path = "sys/node/0/process000.stdout.txt"
    log = (workplace.home / "jobs" / job_id / "logs" / path).read_bytes()
    assert len(log) > 1_000_000 and b"\xff" in log
    page = open_page(portal.address)
    show(page, f"jobs/{job_id}/logs?path={path}")
    expect(page.locator(".log")).to_contain_text("prüfe 11999")
    scroll_up(page)
    expect(page.locator(".log-line a").first).to_have_text("1")
    lines = log.count(b"\n")
    assert page.locator(".log-inner").evaluate("inner => inner.clientHeight") == 19 * lines, "each line is there once"
    for text in (b"0x0008ff", "prüfe 11990".encode()):
        offset = log.rindex(b"\n", 0, log.index(text)) + 1
        page.get_by_role("searchbox").fill(text.decode())
        page.locator(".matches li").filter(has_text=text.decode()).locator("a").first.click()
        expect(page).to_have_url(re.compile(f"at={offset}&"))
        expect(page.locator(".log-line.marked")).to_contain_text(text.decode())
        expect(page.locator(".log-line.marked a")).to_have_text(str(log.count(b"\n", 0, offset) + 1))
    page.reload()
    expect(page.locator(".log-line.marked")).to_contain_text("prüfe 11990")
    page.get_by_role("button", name="Beginning").click()
    expect(page.locator(".log-line a").first).to_have_text("1")
    page.get_by_role("button", name="End").click()
    expect(page.locator(".log")).to_contain_text("prüfe 11999")


@pytest.mark.parametrize(
    "kind, name, reader",
    [("csv", "CSV", "read_csv"), ("jsonl", "JSON lines", "read_json"), ("parquet", "Parquet", "read_parquet")],
)
def test_output_of_each_format_is_a_table_and_downloaded(
    workplace: Workplace, portal: Portal, open_page: Callable[..., Page], kind: str, name: str, reader: str
) -> None:
    workplace.data(1)
    text = 'a, "b" <b>bold</b>'
    rows = [{"number": "7", "text": text, "nothing": None}, {"number": "8", "text": "ü", "nothing": None}]
    script = f"def run(files): return [{{**row, 'number': int(row['number'])}} for row in {rows}]"
    ended = workplace.job(script, append_row_file_name=f"rows.{kind}", output_format="native").run()
    job_id = ended.job_id
    shown = portal.get(f"/jobs/{job_id}/output")
    assert shown["available"] and shown["format"] == kind, shown
    assert [dict(zip(shown["columns"], cells, strict=True)) for cells in shown["cells"]] == rows, shown
    assert not shown["truncated"] and shown["bytes"] == len(ended.output), shown
    assert shown["how_to_read"].startswith(f"pandas.{reader}({json.dumps(shown['path'])}"), shown
    one = portal.get(f"/jobs/{job_id}/output?rows=1")
    assert len(one["cells"]) == 1 and one["truncated"], one
    with portal.open(f"/api/v1/jobs/{job_id}/output/raw") as download:
        assert download.headers["content-disposition"] == f'attachment; filename="rows.{kind}"'
        assert download.read() == ended.output
    page = open_page(portal.address)
    show(page, f"jobs/{job_id}/output")
    expect(page.locator(".pairs")).to_contain_text(name)
    expect(page.locator(".pairs")).to_contain_text(f"rows.{kind}")
    columns = page.locator(".sheet th").all_inner_texts()[1:]
    assert sorted(columns) == ["nothing", "number", "text"], columns
    cells = page.locator(".sheet tbody tr").first.locator("td").all_inner_texts()[1:]
    assert {**dict(zip(columns, cells, strict=True)), "nothing": None} == rows[0]
    expect(page.get_by_text("All rows")).to_be_visible()
    expect(page.locator(".copied code").first).to_contain_text("pandas.read_")


def test_job_of_a_target_is_shown_from_the_queue_to_its_output(
    workplace: Workplace, sqs: Target, open_page: Callable[..., Page]
) -> None:
    workplace.data(3)
    sqs.enqueue(workplace.job(MENDED, error_threshold=0, output=f"s3://{sqs.prefix}/results"))
    portal = Portal(workplace, "--target", sqs.name)
    page = open_page(portal.address)
    page.get_by_role("link", name="test").click()
    expect(page.locator(".title .badge")).to_have_text("Queued")
    sqs.reducer()
    sqs.wait_for_queues()
    sqs.send("tasks", "no descriptor <b>")
    sqs.worker("--node", "first")
    # Nothing is clicked: the page follows.
    expect(page.locator(".title .badge")).to_have_text("Failed", timeout=60_000)
    expect(page.locator(".sentence")).to_contain_text("ValueError: it is not mended yet")
    go(workplace)
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Retry the job").click()
    expect(page.locator(".title .badge")).to_have_text("Completed", timeout=60_000)
    page.locator(".tabs").get_by_role("link", name="Output").click()
    expect(page.locator(".sheet")).to_contain_text("row of 001.txt")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    written = sqs.components.client("s3").get_object(Bucket=sqs.prefix, Key="results/rows.txt")["Body"].read()
    assert Path(downloading.value.path()).read_bytes() == written

    page.get_by_role("link", name="Target", exact=True).click()
    letters = page.locator(".panel").filter(has_text="Dead letters")
    expect(letters.locator("summary")).to_contain_text("by first,", timeout=60_000)
    reason = json.loads(sqs.command("dead-letters", "--json", expect=0).stdout)[0]["reason"]
    expect(letters.locator("summary")).to_contain_text(reason)
    letters.locator("summary").click()
    expect(letters.locator("pre")).to_have_text("no descriptor <b>")
    expect(page.locator(".panel").filter(has_text="Workers and reducers")).to_contain_text("first")
    page.get_by_role("button", name="Check").click()
    expect(page.locator(".check").first).to_be_visible(timeout=60_000)
    expect(page.get_by_role("button", name="Check again")).to_be_visible()
    assert page.locator(".check .badge.bad").all_inner_texts() == []


def test_target_shows_what_is_in_flight_and_who_serves(
    workplace: Workplace, sqlite: Target, open_page: Callable[..., Page]
) -> None:
    workplace.data(3)
    job_id = sqlite.enqueue(workplace.job(SCRIPT))
    reducer = sqlite.reducer()
    sqlite.worker("--node", "first", HOLD="000.txt")
    wait_until(lambda: workplace.recorded("held"), "a mini-batch is held")
    portal = Portal(workplace, "--target", sqlite.name)

    name = f"tasks of {job_id}"

    def tasks() -> dict[str, int] | None:
        return next((queue for queue in portal.get("/target")["queues"] if queue["name"] == name), None)

    def reducers() -> list[tuple[str, bool]]:
        return [(one["job_id"], one["silent"]) for one in portal.get("/target")["reducers"]]

    wait_until(lambda: reducers() == [(job_id, False)], "the reducer is seen")
    queue = tasks()
    assert queue is not None
    assert queue["in_flight"] >= 1 and queue["visible"] + queue["in_flight"] == 3, queue
    page = open_page(portal.address)
    show(page, "target")
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=name, exact=True))
    expect(row.get_by_role("cell")).to_have_text([name, str(queue["visible"]), str(queue["in_flight"]), "0"])
    roles = page.locator(".panel").filter(has_text="Workers and reducers")
    served = roles.get_by_role("row").filter(has_text="reducer")
    expect(served.get_by_role("link", name=job_id)).to_be_visible()
    reducer.send(signal.SIGKILL)
    wait_until(lambda: reducers() == [(job_id, True)], "its silence is noticed")
    expect(served).to_contain_text("silent since")
    go(workplace)
    sqlite.reducer()
    sqlite.wait_for_end(job_id)
    wait_until(lambda: (tasks(), reducers()) == (None, []), "nothing is left")
    expect(served).to_have_count(0)
