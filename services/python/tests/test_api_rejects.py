"""Rejected items of a job, and rounds that run them again."""

import gzip
import json

import pandas as pd
import pytest

import gristmill

pytestmark = pytest.mark.usefixtures("home")


def test_rows_of_rejects_get_to_their_places_in_the_output(tmp_path):
    rates = tmp_path / "rates.json"
    rates.write_text('{"EUR": 1.5}')

    def convert(rows):
        return rows.assign(price=rows["price"] * rows["currency"].map(json.loads(rates.read_text()).__getitem__))

    (tmp_path / "prices.csv").write_text("currency,price\nEUR,2\nCHF,2\nEUR,4\n")
    job = gristmill.run(convert, "prices.csv", error_threshold=-1, isolate="items", progress=False)
    assert job.to_pandas()["price"].tolist() == [3.0, 6.0], "the good rows of the mini-batch are saved"
    (reject,) = job.rejects
    assert (reject["exception"], reject["values"]) == ("KeyError", {"currency": "CHF", "price": 2})

    rates.write_text('{"EUR": 1.5, "CHF": 2}')
    separate = job.retry(separate=True, progress=False)
    assert separate.to_pandas()["price"].tolist() == [4.0] and len(job.to_pandas()) == 2
    assert job.retry(progress=False) is job
    assert (job.state, job.rejects) == ("Completed", [])
    assert job.to_pandas()["price"].tolist() == [3.0, 4.0, 6.0], "at its place"
    assert job.retry(progress=False).state == "Completed", "there is nothing left to do"
    with pytest.raises(gristmill.GristmillError, match="reject"):
        job.retry(separate=True, progress=False)


def test_changed_function_runs_the_rejects(tmp_path):
    def load():
        return {"EUR": 1.5}

    def convert(row, state):
        return row.assign(price=row["price"] * row["currency"].map(state.__getitem__))

    (tmp_path / "prices.csv").write_text("currency,price\nEUR,2\nCHF,2\nEUR,4\nJPY,6\n")
    job = gristmill.run(convert, "prices.csv", init=load, error_threshold=-1, isolate="items", progress=False)
    job = gristmill.attach(job.id)
    assert [reject["values"]["currency"] for reject in job.rejects] == ["CHF", "JPY"]

    def mended(row, state):
        if (row["currency"] == "JPY").any():
            raise ValueError("not yet")
        return row.assign(price=row["price"] * row["currency"].map(lambda name: state.get(name, 2)))

    assert len(job.retry(function=mended, progress=False).rejects) == 1
    assert job.to_pandas()["price"].tolist() == [3.0, 4.0, 6.0]

    # Runs the remaining rejects, with another init.
    assert job.retry(function=convert, init=lambda: {"JPY": 0.5}, progress=False).rejects == []
    assert job.to_pandas()["price"].tolist() == [3.0, 4.0, 6.0, 3.0]


def test_retry_refuses_functions_that_do_not_fit(tmp_path):
    def fail(numbers):
        raise ValueError("bad")

    job = gristmill.run(
        lambda numbers: [1 / number for number in numbers], [1, 0], error_threshold=-1, isolate="items", progress=False
    )
    with pytest.raises(TypeError, match="must be a function, not 'script"):
        job.retry(function="script.py", progress=False)
    with pytest.raises(TypeError, match="takes no argument"):
        job.retry(function=lambda: [], progress=False)
    with pytest.raises(TypeError, match="init goes with a function"):
        job.retry(init=dict, progress=False)

    def frames(frame: pd.DataFrame):
        return frame

    with pytest.raises(TypeError, match="takes a list, and frames a table"):
        job.retry(function=frames, progress=False)

    assert len(job.retry(function=fail, progress=False).rejects) == 1, "the other item keeps its row"
    assert job.retry(function=lambda numbers: numbers, progress=False).rejects == []

    (tmp_path / "entry.py").write_text("def run(files):\n    return [1 / len(open(file).read()) for file in files]\n")
    (tmp_path / "data").mkdir()
    for name, text in (("a.txt", "a"), ("b.txt", "")):
        (tmp_path / "data" / name).write_text(text)
    script = gristmill.run("entry.py", "data", error_threshold=-1, run_max_try=1, progress=False)
    with pytest.raises(TypeError, match=r"runs the entry script in .*, not a function of this machine"):
        script.retry(function=fail, progress=False)


def rows_of_text(form, bad):
    """Returns a text of numbers, and the line of each, counted from 1. Some lines are not rows."""
    lines, places = ["number,text"] if form == "csv" else [], {}
    for number in range(200):
        if number % 9 == 4:
            lines.append("" if form == "csv" else "no JSON")
        places[number] = len(lines) + 1
        lines.append(f"{number},{'x' * (number % 7)}" if form == "csv" else json.dumps({"number": number}))
    return "\n".join(lines) + "\n", {places[number] for number in bad}


@pytest.mark.parametrize(
    "name, size",
    [*(("rows.csv", size) for size in ("100", "37 rows", "1MB")), ("rows.csv.gz", "37 rows"), ("rows.jsonl", "100")],
)
def test_reject_names_the_line_of_its_file(tmp_path, name, size):
    bad = {0, 57, 58, 123, 199}
    text, expected = rows_of_text("jsonl" if "jsonl" in name else "csv", bad)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())

    def inverse(rows):
        return [1 // (number not in bad) for number in rows["number"]]

    job = gristmill.run(inverse, name, mini_batch_size=size, error_threshold=-1, isolate="items", progress=False)
    rejects = [reject for reject in job.rejects if reject["exception"] == "ZeroDivisionError"]
    places = [reject["detail"].rpartition(", line ") for reject in rejects]
    assert {int(line) for _, _, line in places} == expected
    assert {path for path, _, _ in places} == {str(tmp_path / name)}


def test_reject_names_the_row_of_its_parquet_file(tmp_path):
    pd.DataFrame({"number": range(100)}).to_parquet("rows.parquet", row_group_size=30)

    def inverse(rows):
        return [1 // (number not in (0, 29, 77)) for number in rows["number"]]

    job = gristmill.run(inverse, "rows.parquet", mini_batch_size=7, error_threshold=-1, isolate="items", progress=False)
    expected = [f"{tmp_path / 'rows.parquet'}, row {row}, counted from 0" for row in (0, 29, 77)]
    assert [reject["detail"] for reject in job.rejects] == expected
