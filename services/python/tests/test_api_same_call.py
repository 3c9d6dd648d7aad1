"""Which calls of a function are the same: its code, its values, the files that it names, in any process."""

import os
import warnings

import pandas as pd
import pytest
from calls import drive, run

import gristmill


def test_reuse_is_reported_even_without_progress(home, capfd):
    def same(numbers):
        return numbers

    assert not run(same, [1]).reused
    assert "fresh=True" not in capfd.readouterr().err
    job = run(same, [1])
    assert job.reused and "has this result already" in job._repr_html_()
    assert "same code, inputs and settings; fresh=True runs it again" in capfd.readouterr().err
    assert not run(same, [1], fresh=True).reused


def test_modules_imported_inside_a_function_decide_about_reuse(home, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_helper.py").write_text("from own_package.factors import FACTOR\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    factors = tmp_path / "own_package" / "factors.py"
    factors.write_text("FACTOR = 2\n")

    def scaled(numbers):
        import own_helper

        return [number * own_helper.FACTOR for number in numbers]

    assert run(scaled, [1]).to_pandas()["value"].tolist() == [2]
    assert run(scaled, [1]).reused
    (tmp_path / "own_package" / "__init__.py").write_text("from . import factors\nfrom .factors import FACTOR\n")
    (tmp_path / "own_helper.py").write_text("from own_package import FACTOR\n")
    assert not run(scaled, [1]).reused
    factors.write_text("FACTOR = 30\n")
    job = run(scaled, [1])
    assert not job.reused and job.to_pandas()["value"].tolist() == [30]

    def by_name(numbers):
        import importlib

        return [number * importlib.import_module("own_package.factors").FACTOR for number in numbers]

    assert run(by_name, [1]).to_pandas()["value"].tolist() == [30]
    factors.write_text("FACTOR = 4\n")
    assert run(by_name, [1]).to_pandas()["value"].tolist() == [4]


def weights():
    return float(open("model.txt").read())


def scored(numbers, state):
    return [number * state for number in numbers]


def test_another_model_is_not_answered_with_earlier_scores(home, tmp_path, capfd):
    model = tmp_path / "model.txt"
    model.write_text("2")
    assert run(scored, [1, 2], init=weights).to_pandas()["value"].tolist() == [2, 4]
    model.touch()
    assert run(scored, [1, 2], init=weights).reused, "it has the same content"
    capfd.readouterr()
    model.write_text("1000")
    job = gristmill.run(scored, [1, 2], init=weights, process_count_per_node=1)
    assert job.to_pandas()["value"].tolist() == [1000, 2000]
    said = capfd.readouterr().err
    assert "this is a new job, because model.txt, which the function names, has changed\n" in said, said


FOLDER = "model"


@pytest.mark.parametrize("way", ["constant", "value", "joined", "module", "folder", "variable"])
def test_what_a_function_names_decides_about_reuse(home, tmp_path, monkeypatch, way):
    (tmp_path / FOLDER).mkdir()
    path = str(tmp_path / FOLDER / "weight.txt")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("WEIGHT", "2")

    def constant(numbers):
        with open("model/weight.txt") as file:
            return [number * float(file.read()) for number in numbers]

    def value(numbers):
        with open(path) as file:
            return [number * float(file.read()) for number in numbers]

    def joined(numbers):
        with open(os.path.join(FOLDER, "weight.txt")) as file:
            return [number * float(file.read()) for number in numbers]

    def module(numbers):
        import weighing

        return [number * weighing.weight() for number in numbers]

    def folder():
        (file,) = os.scandir("model")
        with open(file.path) as file:
            return float(file.read())

    def variable(numbers):
        return [number * float(os.environ["WEIGHT"]) for number in numbers]

    (tmp_path / "weighing.py").write_text("def weight():\n    return float(open('model/weight.txt').read())\n")
    function, settings = (scored, {"init": folder}) if way == "folder" else (locals()[way], {})

    def scores(weight):
        (tmp_path / FOLDER / "weight.txt").write_text(weight)
        monkeypatch.setenv("WEIGHT", weight)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            job = run(function, [1, 2], **settings)
        return job.to_pandas()["value"].tolist(), job.reused

    assert scores("2") == ([2, 4], False)
    assert scores("30") == ([30, 60], False)
    assert scores("30") == ([30, 60], way != "folder"), "files of a folder are compared by their times"


def test_a_file_that_the_function_writes_makes_no_other_call(home, tmp_path):
    (tmp_path / "calls.txt").write_text("")

    def noted(numbers):
        with open("calls.txt", "a") as file:
            file.write("called\n")
        return numbers

    assert not run(noted, [1]).reused
    assert run(noted, [1]).reused and (tmp_path / "calls.txt").read_text() == "called\n"


DRIVER = """
    import dataclasses, enum, functools

    @dataclasses.dataclass
    class Point:
        x: int
        tags: frozenset

    class Colour(enum.Enum):
        RED = "red"

    STOP = {"a", "of", "the"}
    MODES = frozenset({("x", 1), ("y", 2)})

    class Model:
        def __init__(self):
            self.words = {"a", "the", "one"}
        def of(self, points):
            return [(point.x, isinstance(point, Point), Colour.RED.value) for point in points if self.words]

    def words(items, also=frozenset({"p", "q"})):
        return [item in STOP or item in {"u", "v", "w"} or (item, 1) in MODES for item in items]

    def made(points):
        return [Point(point.x + 1, frozenset({"new"})) for point in points]

    points = [Point(number, frozenset({"first", "second", "third"})) for number in range(3)]
    calls = [
        (words, gristmill.items(["a", "b", "x"])),
        (Model().of, points),
        (Model().of, points[:2]),
        (made, points),
        (lambda sets: [sorted(one) for one in sets], [{"a", "b", "c"}, {"d", "e"}]),
    ]
    for function, inputs in calls:
        job = gristmill.run(function, inputs, progress=False, verbose=False)
        frame = job.to_pandas()
        print(job.reused, frame.to_dict("list") if "value" not in frame else [str(value) for value in frame["value"]])
"""


def test_a_call_is_the_same_in_a_new_process(home):
    """Sets have another order there, and classes of the main module are other objects."""
    first, second = drive(DRIVER).splitlines(), drive(DRIVER).splitlines()
    assert [line.split(" ", 1)[0] for line in first] == ["False"] * 5, first
    assert [line.split(" ", 1)[0] for line in second] == ["True"] * 5, second
    assert [line.split(" ", 1)[1] for line in first] == [line.split(" ", 1)[1] for line in second]
    assert "True" in first[1], "each point has the class that the function knows"


def test_other_lambdas_are_not_compared(home):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(2):
            run(lambda numbers, number=number: [number for _ in numbers], [1])
        gristmill.map(lambda x: x, pd.DataFrame({"x": [1]}), progress=False)
