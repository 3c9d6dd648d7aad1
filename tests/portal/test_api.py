"""The answers of the stand-in are as the description of the API says, like those of the server in every test."""

from urllib.parse import parse_qsl, urlsplit

import pytest

from page_client import COMPLETED, FAILED, HOSTILE, RUNNING
from portal_schemas import check
from stand_in import DISPOSED, DOCTOR, TARGET, StandIn


@pytest.mark.parametrize("job", [COMPLETED, FAILED, HOSTILE, RUNNING])
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/series",
        "/map",
        "/mini-batches",
        "/mini-batches/3",
        "/mini-batches/30",
        "/timeline",
        "/nodes",
        "/logs",
        "/logs/text",
        "/logs/search",
        "/output",
        "/rejects",
        "/source",
        "/source?since=other",
    ],
)
def test_answers_of_jobs_are_as_described(job: str, path: str, stand_in: StandIn) -> None:
    query = {"path": "readme.txt", "q": "error", **dict(parse_qsl(urlsplit(path).query))}
    answer = stand_in.jobs[job].answer(urlsplit(path).path, query)
    check("get", f"/jobs/{job}{path}", answer)


def test_other_answers_are_as_described(stand_in: StandIn) -> None:
    check("get", "/jobs", {**stand_in.list({}), "next": None})
    check("get", "/target", TARGET)
    check("post", "/target/dead-letters/redrive", DISPOSED)
    check("post", "/doctor", DOCTOR)
    with pytest.raises(AssertionError, match="'workers' is a required property"):
        check("get", "/target", {key: value for key, value in TARGET.items() if key != "workers"})
    with pytest.raises(AssertionError, match="Additional properties are not allowed"):
        check("get", "/target", {**TARGET, "new": 1})
    with pytest.raises(AssertionError, match="does not describe"):
        check("get", "/unknown", {})
