"""Rejected items of a job, and the job that runs them again."""

import json

import pytest

import gristmill


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_rejects_are_replayed_into_the_output(tmp_path):
    rates = tmp_path / "rates.json"
    rates.write_text('{"EUR": 1.5}')

    def convert(rows):
        return rows.assign(price=rows["price"] * rows["currency"].map(json.loads(rates.read_text()).__getitem__))

    (tmp_path / "prices.csv").write_text("currency,price\nEUR,2\nCHF,2\nEUR,4\n")
    job = gristmill.run(convert, "prices.csv", error_threshold=-1, progress=False)
    assert job.to_pandas()["price"].tolist() == [3.0, 6.0], "the good rows of the mini-batch are saved"
    (reject,) = job.rejects
    assert (reject["exception"], reject["values"]) == ("KeyError", {"currency": "CHF", "price": 2})

    rates.write_text('{"EUR": 1.5, "CHF": 2}')
    separate = job.replay(separate=True, progress=False)
    assert separate.to_pandas()["price"].tolist() == [4.0] and len(job.to_pandas()) == 2
    replay = job.replay(progress=False)
    assert (replay.state, replay.rejects) == ("Completed", [])
    assert job.to_pandas()["price"].tolist() == [3.0, 4.0, 6.0], "at its place"
    with pytest.raises(gristmill.GristmillError, match="reject"):
        replay.replay(progress=False)
