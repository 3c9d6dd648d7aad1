"""The portal when something goes wrong: a store vanishes, clients do not read, clocks differ."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.parse

import pytest

from harness import COMPLETED, go
from portal_client import HOLDS, Portal

READERS = 40


def refused(portal: Portal, path: str) -> tuple[int, dict]:
    with pytest.raises(urllib.error.HTTPError) as error:
        portal.get(path)
    return error.value.code, json.load(error.value)


def test_vanished_store_of_a_target_is_no_removal(workplace, sqlite):
    workplace.data(1)
    job_id = sqlite.enqueue(workplace.job(HOLDS))
    portal = Portal(workplace, "--target", sqlite.name)
    store = urllib.parse.urlsplit(portal.get("/info")["place"]).path
    assert portal.get(f"/jobs/{job_id}")["state"] == "Queued"
    workplace.folder.joinpath(store).rename(f"{store}-away")
    status, answer = refused(portal, f"/jobs/{job_id}")
    assert status == 503 and "removed" not in answer, answer
    workplace.folder.joinpath(f"{store}-away").rename(store)
    assert portal.get(f"/jobs/{job_id}")["state"] == "Queued"


def test_clients_that_do_not_read_do_not_hold_up_the_job(workplace):
    """The portal shares the process of the job: half of its clients read nothing, the others a byte now and then."""
    workplace.data(60)
    running = workplace.start("run", workplace.job(HOLDS).file, "--portal", HOLD="001.txt")
    running.wait_for_record("held")
    portal = Portal.of(running)
    [job_id] = workplace.job_ids()
    log = workplace.home / "jobs" / job_id / "logs/user/stdout/large.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"x" * 20_000_000)
    paths = [f"/jobs/{job_id}/logs/raw?path=user/stdout/large.txt", f"/events?job={job_id}"]
    readers = []
    for number in range(READERS):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", urllib.parse.urlsplit(portal.url).port))
        reader.sendall(
            f"GET /api/v1{paths[number % 2]} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"authorization: Bearer {portal.token}\r\n\r\n".encode()
        )
        readers.append(reader)
    assert all(reader.recv(9) == b"HTTP/1.1 " for reader in readers), "all of them are being answered"
    assert portal.get(f"/jobs/{job_id}")["state"] == "Running", "another page is answered, too"
    began = time.monotonic()
    go(workplace)
    while running.process.poll() is None and time.monotonic() - began < 60:
        readers[int(time.monotonic()) % READERS].recv(1)
        time.sleep(0.1)
    ended = running.wait()
    assert ended.exit_status == COMPLETED, ended
    for reader in readers:
        reader.close()


def test_job_whose_clock_was_wrong_is_shown(workplace, portal):
    """The clock of the machine that ran the job was a day ahead."""
    workplace.data(3)
    job_id = workplace.job(HOLDS).interrupt(hold="002.txt", committed=2)
    file = workplace.home / "jobs" / job_id / "progress.json"
    progress = json.loads(file.read_text())
    day = 86_400_000
    file.write_text(json.dumps(progress | {"at": progress["at"] + day, "started_at": progress["started_at"] + day}))
    job = portal.get(f"/jobs/{job_id}")
    assert job["state"] == "Interrupted" and job["mini_batches"]["succeeded"] == 2, job
    assert 0 <= job["elapsed_seconds"] < 600 and job["sentence"], job
    [row] = portal.get("/jobs")["jobs"]
    assert (row["job_id"], row["mini_batches"]["succeeded"]) == (job_id, 2)
