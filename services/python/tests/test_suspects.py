"""The item that a failed ``run`` was working on, as the answer names it: `suspect`."""

import pyarrow as pa

TABLE = pa.record_batch(
    [pa.array(range(100, 105)), pa.array([0.5, 1.5, None, 0.5, 4.5]), pa.array(["é", "b", None, "bad", "e"])],
    names=["number", "value", "text"],
)
CHECK = """
import pathlib
from concurrent.futures import ThreadPoolExecutor
def check(value):
    if value in (103, "bad", pathlib.Path("bad")):
        raise ValueError(value)
    return value
"""


def suspect(agent, event):
    assert (event["status"], agent.process.poll()) == ("run_raised", None), event
    return event.get("suspect")


def start_with(start, argument, bodies, setup="", **options):
    """Starts a process whose `run` has one of these bodies for every ten mini-batches."""
    functions = "".join(f"def body_{n}({argument}):\n    {body}\n" for n, body in enumerate(bodies))
    call = f"def run({argument}, context): return globals()[f'body_{{context.minibatch_index // 10}}']({argument})\n"
    return start(f"{CHECK}{setup}{functions}{call}", **options)


def test_row_is_known(start):
    bodies = [
        "return [check(row.number) for row in frame.itertuples()]",
        "for row in frame.itertuples(index=True):\n        check(row.number)",
        "for _, row in frame.iterrows():\n        check(row['number'])",
        "return frame.apply(lambda row: check(row['number']), axis=1)",
        "return [of(row) for row in frame.to_dict('records')]",
        "return [of(row._asdict()) for row in frame.itertuples(index=False)]",
        "return [check(text) for text in frame['text']]",
        "return frame['text'].map(check)",
        "numbers = [str(number) for number in frame['number']]\n    return [check_text(text) for text in numbers]",
        "first = frame.iloc[0]\n    for position in range(5):\n        check(frame.iloc[position]['number'])",
    ]
    setup = """
def of(record):
    record["new"] = check(record["number"])
    return record
def check_text(text):
    return check(int(text))
"""
    agent = start_with(start, "frame", bodies, setup, tabular=True)
    for number, body in enumerate(bodies):
        # A variable that is left over may hide the row.
        expected = 3 if "iloc[position]" not in body else 0
        assert suspect(agent, agent.run_table(TABLE, mini_batch=10 * number)) == expected, body


def test_row_of_an_arrow_table_is_known(start):
    bodies = ["return [of(row) for row in table.to_pylist()]"]
    setup = "__gristmill_arrow__ = True\ndef of(record): return check(record['number'])\n"
    agent = start_with(start, "table", bodies, setup, tabular=True)
    assert suspect(agent, agent.run_table(TABLE, mini_batch=0)) == 3


def test_file_is_known(start):
    bodies = [
        "return [check(path) for path in files]",
        "first = files[0]\n    for path in files:\n        check(path)",
        "return [check(pathlib.Path(file)) for file in files]",
        "with ThreadPoolExecutor(2) as pool:\n        return list(pool.map(check, files))",
        "return (check(path) for path in files)",
        "for path in files:\n        yield path, check(path)",
        "for path in files:\n        done = path.upper()\n        yield path, check(done.lower())",
    ]
    agent = start_with(start, "files", bodies)
    for number, body in enumerate(bodies):
        first = 10 * number
        assert suspect(agent, agent.run(["a", "b", "c", "bad", "e"], mini_batch=first)) == 3, body
        of_range = agent.run(["a", "b", "c", "d", "e", "bad"], mini_batch=first + 1, items=(2, 6))
        assert suspect(agent, of_range) == 3, f"in the range: {body}"
        assert suspect(agent, agent.run(["bad"], mini_batch=first + 2)) is None, f"no other item: {body}"


def test_first_item_that_was_not_handed_back_is_the_suspect(start):
    script = """
    def run(files):
        todo = list(files)
        while todo:
            path = todo.pop(0)
            if "bad" in path:
                del path
                raise ValueError
            yield path, path
            del path
    """
    agent = start(script)
    files = ["a", "b", "c", "bad", "e"]
    assert suspect(agent, agent.run(files, mini_batch=0)) == 3
    # The next attempt gets the last two.
    assert suspect(agent, agent.run(files, mini_batch=0, try_number=2)) == 3
    assert suspect(agent, agent.run(files, mini_batch=0, items=(1, 5))) == 2


def test_unknown_item_is_not_named(start):
    bodies = [
        "raise ValueError",
        "del files[:]\n    raise ValueError",
        "number = 3\n    nothing = None\n    name = 'd'\n    raise ValueError(name)",
        "return None",
        "def deeper(n):\n        return deeper(n + 1)\n    return deeper(0)",
        "class Odd:\n        def __fspath__(self):\n            exit(1)\n    odd = Odd()\n    raise ValueError",
    ]
    agent = start_with(start, "files", bodies)
    for number, body in enumerate(bodies):
        for time in range(2):
            assert "suspect" not in agent.run(["a", "b", "c"], mini_batch=10 * number + time), body


def test_label_of_an_index_leads_to_its_row():
    import pandas

    from gristmill.suspects import suspect_of

    frame = pandas.DataFrame({"number": [1, 1, 1]}, index=[30, 20, 10])
    for row in (list(frame.iterrows())[1][1], list(frame.itertuples())[1]):
        try:
            raise KeyError(row)
        except KeyError as error:
            assert suspect_of(error, frame) == 1, row
