"""Each object of a job is damaged: the portal answers with what it knows or with one sentence, and goes on."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error

import pytest

from harness import FAILED, Workplace
from portal_client import FAILS_ON_ONE, Portal
from portal_schemas import check

# All of them look at one job.
pytestmark = pytest.mark.xdist_group("damaged")

PATHS = (
    "",
    "/series",
    "/map",
    "/map?by=duration",
    "/mini-batches",
    "/mini-batches?sort=duration",
    "/mini-batches/3",
    "/timeline",
    "/nodes",
    "/logs",
    "/logs/text?path=user/stdout/0/process000.stdout.txt",
    "/logs/search?q=three",
    "/rejects",
    "/output",
)
MOST = str(2**64 - 1)
DAMAGES = {
    "empty": lambda _: b"",
    "cut": lambda content: content[: len(content) // 2],
    "noise": lambda content: bytes((byte * 7 + at) % 256 for at, byte in enumerate(content)),
    "deep": lambda _: b'{"a":' * 100_000,
    "huge numbers": lambda content: re.sub(rb"(?<=[:,\[ ])\d+(?=[,\]} \n])", MOST.encode(), content),
    "negative numbers": lambda content: re.sub(rb"(?<=[:,\[ ])\d+(?=[,\]} \n])", b"-9e308", content),
    "markup": lambda _: b"</script><img src=x onerror=alert(1)>\x1b[2J\xff",
}


@pytest.fixture(scope="module")
def failed(shared_workplace: Workplace) -> tuple[Workplace, str]:
    """A job that has failed, with its workplace."""
    shared_workplace.data(6)
    job = shared_workplace.job(FAILS_ON_ONE, error_threshold=0, run_max_try=2)
    return shared_workplace, job.run(expect=FAILED).job_id


def asked(portal: Portal, path: str) -> tuple[int, str]:
    """Returns the status of an answer, which must be as described, and the sentence of a refusal."""
    try:
        with portal.open("/api/v1" + path) as answer:
            document = json.load(answer)
        check("get", path.partition("?")[0], document)
        return 200, ""
    except urllib.error.HTTPError as error:
        refusal = json.load(error)
        assert refusal.keys() <= {"error", "removed"}, (path, refusal)
        return error.code, refusal["error"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_object_has_a_sentence_and_harms_no_other_job(failed: tuple[Workplace, str], damage: str) -> None:
    workplace, job_id = failed
    for other in set(workplace.job_ids()) - {job_id}:
        shutil.rmtree(workplace.home / "jobs" / other)
    whole = workplace.home / "jobs" / job_id
    names = sorted(str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file() and file.stat().st_size)
    assert {"spec.json", "result.json"} <= set(names) and any(name.startswith("ledger/") for name in names), names
    portal = Portal(workplace)
    before = {path: asked(portal, f"/jobs/{job_id}{path}") for path in PATHS}
    assert {status for status, _ in before.values()} == {200}, before
    damaged = {}
    for number, name in enumerate(names):
        folder = workplace.copy_of(job_id, f"{job_id[:-4]}{number:04x}")
        file = folder / name
        file.chmod(0o600)
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
        damaged[folder.name] = name
    problems = []
    said = {}
    for other, name in damaged.items():
        for path in PATHS:
            status, sentence = asked(portal, f"/jobs/{other}{path}")
            said[name, path] = sentence
            if status not in (200, 404, 503) or (status != 200 and not re.fullmatch(r"\w[^\n\x1b]{10,}", sentence)):
                problems.append((name, path, status, sentence))
    assert problems == []
    listed = portal.get("/jobs?limit=200")
    assert job_id in [row["job_id"] for row in listed["jobs"]], "other jobs are listed"
    assert {path: asked(portal, f"/jobs/{job_id}{path}") for path in PATHS} == before
    if damage in ("empty", "cut", "noise", "deep", "markup"):
        assert "spec.json" in said["spec.json", ""], said["spec.json", ""]
        ledgers = [other for other, name in damaged.items() if name.startswith("ledger/")]
        notes = [" ".join(portal.get(f"/jobs/{other}")["notes"]) for other in ledgers]
        assert notes and all("of the ledger is damaged or incomplete" in note for note in notes), notes
    portal.running.process.terminate()
    assert "panicked" not in portal.running.wait().stderr
