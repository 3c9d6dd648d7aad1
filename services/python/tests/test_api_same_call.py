"""Which calls of a function are the same: its code, its values, the files that it names, in any process."""

import glob
import json
import os
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pandas as pd
import pytest
from agent import PACKAGE
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
VARIABLE = "WEIGHT"


@pytest.mark.parametrize("way", ["constant", "value", "joined", "module", "folder", "pattern", "variable", "named"])
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

    def pattern(numbers):
        (path,) = glob.glob("model/*.txt")
        with open(path) as file:
            return [number * float(file.read()) for number in numbers]

    def variable(numbers):
        return [number * float(os.environ["WEIGHT"]) for number in numbers]

    def named(numbers):
        return [number * float(os.environ[VARIABLE]) for number in numbers]

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
    assert scores("30") == ([30, 60], way not in ("folder", "pattern")), "these files are compared by their times"


def test_interrupted_call_continues_although_a_file_has_changed(home, tmp_path):
    def waiting(numbers):
        while not os.path.exists("gate.txt"):
            time.sleep(0.05)
        return numbers

    first = gristmill.submit(waiting, [1, 2], mini_batch_size=1, process_count_per_node=1)
    first.cancel()
    (tmp_path / "gate.txt").write_text("open")
    second = gristmill.submit(waiting, [1, 2], mini_batch_size=1, process_count_per_node=1)
    assert second.id == first.id and second.wait(progress=False).to_pandas()["value"].tolist() == [1, 2]
    third = gristmill.submit(waiting, [1, 2], mini_batch_size=1, process_count_per_node=1)
    assert third.id != first.id, "the result is that of another file"
    assert third.wait(progress=False).reused is False


LOG = "calls.txt"


@pytest.mark.parametrize("way", ["constant", "value", "variable", "method"])
def test_a_file_that_the_function_writes_makes_no_other_call(home, tmp_path, way):
    (tmp_path / LOG).write_text("")

    def constant(numbers):
        with open("calls.txt", "a") as file:
            file.write("called\n")
        return numbers

    def value(numbers):
        print("called", file=open(LOG, mode="a"))  # noqa: SIM115
        return numbers

    def variable(numbers):
        path = "calls.txt"
        with open(os.path.join(".", path), "a", encoding="utf-8") as file:
            file.write("called\n")
        return numbers

    def method(numbers):
        Path("calls.txt").write_text("called\n")
        return numbers

    function = locals()[way]
    assert not run(function, [1]).reused
    assert (tmp_path / LOG).read_text() == "called\n"
    assert run(function, [1]).reused


def test_a_file_that_is_read_in_a_function_that_writes_others_decides(home, tmp_path):
    (tmp_path / "weights.json").write_text('{"w": 2}')

    def weighed(frame):
        weight = json.load(open("weights.json"))["w"]  # noqa: SIM115
        frame.to_csv("written.csv")
        return [f"{weight} {frame.to_json()}"]

    frame = pd.DataFrame({"w": [1]})
    assert run(weighed, frame, mini_batch_size=1).to_pandas()["value"].tolist() == ['2 {"w":{"0":1}}']
    assert run(weighed, frame, mini_batch_size=1).reused
    (tmp_path / "weights.json").write_text('{"w": 3}')
    assert run(weighed, frame, mini_batch_size=1).to_pandas()["value"].tolist() == ['3 {"w":{"0":1}}']


def test_the_working_folder_is_no_folder_of_a_model(home, tmp_path):
    def loaded():
        return "a.b".partition(".")

    assert not run(lambda numbers, state: numbers, [1], init=loaded).reused
    (tmp_path / "unrelated.txt").write_text("changed")
    assert run(lambda numbers, state: numbers, [1], init=loaded).reused


def test_rows_of_a_corrected_function_stay_when_the_call_runs_again(home):
    def priced(numbers):
        if 3 in numbers:
            raise ValueError("no price")
        return numbers

    def call():
        return gristmill.run(priced, [1, 3], mini_batch_size=1, error_threshold=-1, progress=False)

    job = call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job.retry(progress=False, function=lambda numbers: numbers)
        again = call()
        assert again.to_pandas()["value"].tolist() == [1] and call().id != job.id
    assert job.to_pandas()["value"].tolist() == [1, 3]


DRIVER = """
    import dataclasses, enum, sys
    from pathlib import Path

    sys.path.insert(0, ".")
    from scaling import scale

    @dataclasses.dataclass
    class Point:
        x: int
        tags: frozenset = frozenset({"first", "second", "third"})

        def big(self):
            return scale(self.x)

    class Colour(enum.Enum):
        RED = "red"

    STOP = {"a", "of", "the"}
    MODES = frozenset({("x", 1), ("y", 2), (Path("p"), 3), (Path("q"), 4)})

    class Model:
        def __init__(self):
            self.words = {"a", "the", "one"}

        def of(self, numbers):
            points = [Point(number) for number in numbers]
            return [f"{one.big()} {isinstance(one, Point)} {Colour.RED.value} {len(self.words)}" for one in points]

    def words(items, also=frozenset({"p", "q"})):
        return [item in STOP or item in {"u", "v", "w"} or (item, 1) in MODES for item in items]

    def known(points):
        return [f"{isinstance(point, Point)} {point.big()}" for point in points]

    calls = [
        (words, gristmill.items(["a", "b", "x"])),
        (Model().of, [1, 2]),
        (lambda sets: [",".join(sorted(one)) for one in sets], [{"a", "b", "c"}, {"d", "e"}]),
        (known, [Point(3), Point(4)]),
    ]
    for function, inputs in calls:
        jobs = [gristmill.run(function, inputs, progress=False, verbose=False) for _ in range(2)]
        print(*[job.reused for job in jobs], jobs[0].to_pandas()["value"].tolist())
"""


def test_a_call_is_the_same_in_a_new_process(home, tmp_path):
    """Sets have another order there, and classes of the main module are other objects."""
    (tmp_path / "scaling.py").write_text("def scale(number):\n    return 10 * number\n")
    expected = [
        [True, False, True],
        ["10 True red 3", "20 True red 3"],
        ["a,b,c", "d,e"],
        ["True 30", "True 40"],
    ]
    for reused in ([False] * 4, [True, True, True, False]):
        lines = [f"{first} True {values}" for first, values in zip(reused, expected, strict=True)]
        assert drive(DRIVER).splitlines() == lines, "inputs of a class of the main module are others in each process"


SCRIPT = """
    import dataclasses, enum
    from shapes import Colour, Square

    @dataclasses.dataclass
    class Own:
        side: int

    def known(shapes):
        kinds = {Colour.RED: "red", Colour.BLUE: "blue"}
        return [
            f"{isinstance(one, (Square, Own))} {one in (Square(1), Own(1))} {kinds[colour]}" for one, colour in shapes
        ]

    job = gristmill.run(known, [(Square(1), Colour.RED), (Own(1), Colour.BLUE)], progress=False, verbose=False)
    import pandas
    frame = pandas.DataFrame({"one": [Square(1), Own(1)], "colour": [Colour.RED, Colour.BLUE]})
    cells = gristmill.run(
        lambda frame: known(list(zip(frame["one"], frame["colour"]))), frame, progress=False, verbose=False
    )
    assert cells.to_pandas().equals(job.to_pandas()), cells.to_pandas()
    print(job.reused, job.to_pandas()["value"].tolist())
"""


def test_objects_of_own_classes_are_those_that_the_function_knows(home, tmp_path):
    (tmp_path / "shapes.py").write_text(
        "import dataclasses, enum\n"
        "@dataclasses.dataclass\nclass Square:\n    side: int\n"
        "class Colour(enum.Enum):\n    RED = 1\n    BLUE = 2\n"
    )
    script = tmp_path / "script.py"

    def ran(text):
        import_path = f"import sys\nsys.path.insert(0, {str(PACKAGE)!r})\nimport gristmill\n"
        script.write_text(import_path + textwrap.dedent(text))
        ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        return ended.stdout.strip()

    expected = "['True True red', 'True True blue']"
    assert ran(SCRIPT) == f"False {expected}"
    assert ran(SCRIPT) == f"True {expected}", "in a new process, too"
    assert ran(SCRIPT + "    # Another text.\n") == f"False {expected}"
    (tmp_path / "shapes.py").write_text((tmp_path / "shapes.py").read_text() + "# Another text.\n")
    assert ran(SCRIPT) == f"False {expected}"


def test_sets_and_classes_that_differ_make_other_calls(home):
    def kind(numbers):
        return [type(holds).__name__ for _ in numbers]

    holds = {1, 2}
    assert run(kind, [1]).to_pandas()["value"].tolist() == ["set"]
    holds = frozenset({1, 2})
    assert run(kind, [1]).to_pandas()["value"].tolist() == ["frozenset"]

    def made():
        class Empty:
            pass

        return Empty

    first, second = made(), made()
    kinds = run(lambda items: [type(item) is first for item in items], [first(), second()])
    assert kinds.to_pandas()["value"].tolist() == [True, False]


def test_other_lambdas_are_not_compared(home):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(2):
            run(lambda numbers, number=number: [number for _ in numbers], [1])
        gristmill.map(lambda x: x, pd.DataFrame({"x": [1]}), progress=False)


def test_earlier_scores_stay_hidden_beside_an_unfinished_job(home, tmp_path):
    """Only the very job that has not ended continues, and its result, of two contents, is that of no call."""
    path = tmp_path / "model.txt"

    def weighed(numbers):
        while float(Path("model.txt").read_text()) == 1:
            time.sleep(0.05)
        return [float(Path("model.txt").read_text()) * number for number in numbers]

    def scores(weight, numbers):
        path.write_text(weight)
        return run(weighed, numbers, mini_batch_size=1).to_pandas()["value"].tolist()

    path.write_text("1")
    gristmill.submit(weighed, [0], mini_batch_size=1, process_count_per_node=1).cancel()
    stopped = gristmill.submit(weighed, [5], mini_batch_size=1, process_count_per_node=1)
    stopped.cancel()
    assert scores("2", [7]) == [14]
    assert scores("3", [7]) == [21], "not the scores of the second model"
    path.write_text("3")
    continued = gristmill.submit(weighed, [5], mini_batch_size=1, process_count_per_node=1)
    assert continued.wait(progress=False).id == stopped.id
    path.write_text("1")
    another = gristmill.submit(weighed, [5], mini_batch_size=1, process_count_per_node=1)
    assert another.id != stopped.id
    another.cancel()
