"""The contract between the engine and an entry script: functions, arguments, results, environment."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from harness import ROOT

PACKAGE = ROOT / "services" / "python" / "package"


def test_script_sees_arguments_modules_folders_and_context(workplace):
    """A script in two processes reads its arguments, modules, folders, environment and context."""
    workplace.data(12)
    workplace.write(
        {
            "code/at_the_root.py": "VALUE = 'root'",
            "code/models/beside_the_script.py": "VALUE = 'beside'",
            "code/lookup.txt": "from the snapshot",
        }
    )
    script = """
        import argparse, os, sys
        import at_the_root, beside_the_script
        from recorder import record, recorded, wait_for

        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--answer", type=int)
        parser.add_argument("--names", nargs="*")
        parser.add_argument("--flag")
        ARGUMENTS, UNKNOWN = parser.parse_known_args()
        record("import", argv=sys.argv, answer=ARGUMENTS.answer, names=ARGUMENTS.names, flag=ARGUMENTS.flag)

        def init():
            os.makedirs("./outputs")
            with open("./outputs/mine.txt", "w") as file:
                file.write(str(os.getpid()))
            record("init", cwd=os.getcwd(), file=__file__, name=__name__, lookup=open("lookup.txt").read(),
                   sibling=[at_the_root.VALUE, beside_the_script.VALUE], path=sys.path,
                   variables=dict(os.environ))

        def run(any_name_will_do, the_context):
            # Only ready processes get work, so both are ready.
            record("begun")
            wait_for(lambda: len({fact["pid"] for fact in recorded("begun")}) == 2)
            record("run", items=[type(item).__name__ for item in any_name_will_do],
                   kind=type(any_name_will_do).__mro__[-2].__name__,
                   paths=any_name_will_do, key=the_context.partition_key_value, index=the_context.minibatch_index,
                   id=the_context.mini_batch_id, attempt=the_context.attempt, node=the_context.node_id,
                   process=the_context.process_name, text=f"{the_context}")
            return any_name_will_do

        def shutdown():
            record("shutdown")
    """
    job = workplace.job(
        script,
        entry_script="models/score.py",
        process_count_per_node=2,
        mini_batch_size=2,
        arguments=["--answer", 42, "--names", "Store", "Brand", "--flag", True],
        environment_variables={"COLOUR": "green"},
    )
    ended = job.run()

    folder = workplace.folder
    assert ended.lines == [str(folder / "data" / f"{number:03}.txt") for number in range(12)]
    assert ended.items == (12, 12, 0)
    assert ended.mini_batches == (6, 6, 0)

    imports, inits = workplace.recorded("import"), workplace.recorded("init")
    pids = {fact["pid"] for fact in inits}
    assert len(imports) == len(inits) == len(pids) == 2, "import and init once in each process"
    assert sorted(fact["pid"] for fact in workplace.recorded("shutdown")) == sorted(pids), "shutdown once in each"
    for fact in imports:
        assert (fact["answer"], fact["names"], fact["flag"]) == (42, ["Store", "Brand"], "True")
        argv = fact["argv"][1:]
        pairs = dict(itertools.pairwise(argv))
        engine = {
            "--mini_batch_size": "2",
            "--error_threshold": "-1",
            "--output_action": "append_row",
            "--logging_level": "INFO",
            "--run_invocation_timeout": "60",
            "--run_max_try": "1",
            "--append_row_file_name": "rows.txt",
            "--output": str(folder / "output"),
            "--process_count_per_node": "2",
            "--scoring_module_name": "models/score.py",
        }
        assert {name: pairs.get(name) for name in engine} == engine, "name and value are two arguments"

    for fact in inits:
        assert fact["name"] == "models.score"
        assert fact["sibling"] == ["root", "beside"]
        assert fact["lookup"] == "from the snapshot"
        assert Path(fact["file"]).is_absolute()
        assert Path(fact["file"]).parts[-2:] == ("models", "score.py")
        variables = fact["variables"]
        assert variables["COLOUR"] == "green"
        assert variables["AZUREML_BI_OUTPUT_PATH"] == str(folder / "output")
        assert variables["AZUREML_NODE_COUNT"] == "1"
        share = max(1, len(os.sched_getaffinity(0)) // 2)
        assert variables["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", str(share))
        assert "CUDA_VISIBLE_DEVICES" not in variables
    assert len({fact["cwd"] for fact in inits}) == 2, "each process has a folder of its own"
    assert not (folder / "code" / "outputs").exists(), "relative files do not land in the user's code"

    runs = workplace.recorded("run")
    assert len(runs) == 6
    assert {(fact["kind"], *fact["items"]) for fact in runs} == {("list", "str", "str")}
    assert all(Path(path).is_absolute() for fact in runs for path in fact["paths"])
    assert all(fact["key"] == {} and fact["attempt"] == 1 for fact in runs)
    assert sorted(int(fact["index"]) for fact in runs) == sorted(int(fact["id"]) for fact in runs) == list(range(6))
    assert {fact["node"] for fact in runs} == {"0"}
    assert {fact["process"] for fact in runs} <= {"process000", "process001"}


def test_every_valid_result_is_counted_and_written(workplace):
    results = {
        "list": "['a', 'b']",
        "tuple": "('a', 'b')",
        "array": "numpy.array([1, 2])",
        "series": "pandas.Series(['x', 'y'])",
        "generator": "(name for name in 'gh')",
        "frame": "pandas.DataFrame({'n': [1, 2], 't': ['one', 'two words']})",
        "empty": "[]",
        "short": "['only one']",
        "long": "['1', '2', '3']",
        "nothing but None": "[None, None]",
    }
    expected = {
        "list": (["a", "b"], 2),
        "tuple": (["a", "b"], 2),
        "array": (["1", "2"], 2),
        "series": (["x", "y"], 2),
        "generator": (["g", "h"], 2),
        "frame": (["1 one", '2 "two words"'], 2),
        "empty": ([], 0),
        "short": (["only one"], 1),
        "long": (["1", "2", "3"], 2),
        "nothing but None": (["None", "None"], 2),
    }
    # Mini-batches never mix folders, so every folder is a mini-batch of two files.
    for name in results:
        workplace.data(2, folder=f"data/{name}")
    cases = ", ".join(f"{name!r}: lambda: {result}" for name, result in results.items())
    script = f"""
        import os, numpy, pandas
        RESULTS = {{{cases}}}
        def run(files):
            return RESULTS[os.path.basename(os.path.dirname(files[0]))]()
    """
    ended = workplace.job(script, mini_batch_size=2).run()
    names = sorted(results)
    assert ended.lines == [line for name in names for line in expected[name][0]]
    assert ended.mini_batches == (10, 10, 0), "a short result is no failed mini-batch"
    assert ended.items == (20, 17, 3)
    counted = [(int(row["Total"]), int(row["Succeeded"]), int(row["Failed"])) for row in ended.attempts()]
    assert counted == [(2, expected[name][1], 2 - expected[name][1]) for name in names]
    assert {row["Status"] for row in ended.attempts()} == {"RUN_DONE"}


def test_invalid_results_are_named_and_spend_every_try(workplace):
    workplace.data(5)
    script = """
        from recorder import record
        RESULTS = {"000": None, "001": "text", "002": {"a": 1}, "003": 5, "004": ["fine"]}
        def run(files):
            name = open(files[0]).read()
            record("run", name=name)
            return RESULTS[name]
    """
    ended = workplace.job(script, run_max_try=2).run()
    assert ended.lines == ["fine"]
    assert ended.mini_batches == (5, 1, 4)
    assert ended.items == (5, 1, 4)
    tries = [fact["name"] for fact in workplace.recorded("run")]
    assert {name: tries.count(name) for name in tries} == {"000": 2, "001": 2, "002": 2, "003": 2, "004": 1}
    # The message of the last attempt of each mini-batch contains the type.
    messages = {row["Mini-batch Id"]: row["Error Message"] for row in ended.attempts()}
    for mini_batch, kind in {"0": "NoneType", "1": "str", "2": "dict", "3": "int"}.items():
        assert kind in messages[mini_batch], messages
        assert "should return a list or a pandas DataFrame" in messages[mini_batch]
    assert "NoneType" in ended.log("job_error.txt")


def test_short_result_fails_the_mini_batch_in_strict_mode(workplace):
    workplace.data(4)
    script = """
        def run(files):
            return files[:1]
    """
    ended = workplace.job(script, mini_batch_size=2, strict_results=True).run(expect=42)
    assert ended.mini_batches == (2, 0, 2)
    assert ended.items == (4, 0, 4)


def test_script_owns_its_frame(workplace):
    """Blocks start at index 0, empty ones never reach run(), and the frame may be changed in place."""
    lines = "".join(f"{number},{'x' * 95}\n" for number in range(10, 14))
    workplace.write({"data/t.csv": "idx,text\n" + lines})
    script = """
        from recorder import record
        def run(frame):
            record("run", rows=len(frame), index=[frame.index.start, frame.index.stop, frame.index.step],
                   kind=type(frame.index).__name__, types=[str(kind) for kind in frame.dtypes])
            frame["double"] = frame["idx"] * 2
            frame.loc[0, "idx"] = -1
            frame.drop(columns="text", inplace=True)
            return frame
    """
    inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "data/t.csv"}]
    ended = workplace.job(script, inputs=inputs, mini_batch_size=40).run()
    assert ended.lines == ["-1 20", "-1 22", "-1 24", "-1 26"]
    runs = workplace.recorded("run")
    assert [(fact["rows"], fact["index"], fact["kind"]) for fact in runs] == [(1, [0, 1, 1], "RangeIndex")] * 4
    assert ended.items == (4, 4, 0)
    # ceil(409 / 40) = 11 blocks, of which seven contain no line.
    assert ended.mini_batches == (11, 11, 0)


def test_entry_script_helper_works_in_a_worker(workplace):
    workplace.data(2)
    script = """
        import os
        from azureml_user.parallel_run import EntryScript
        from recorder import record

        def init():
            helper = EntryScript()
            os.makedirs(helper.log_dir, exist_ok=True)
            helper.logger.info("info from init")
            helper.logger.debug("debug is below the level")
            record("init", same=EntryScript() is helper, log_dir=helper.log_dir, output_dir=helper.output_dir,
                   agent_name=helper.agent_name, working_dir=helper.working_dir)
            with open(os.path.join(helper.output_dir, "own.txt"), "w") as file:
                file.write("written by the script")

        def run(files):
            EntryScript().logger.warning("warning from run")
            return files
    """
    ended = workplace.job(script).run()
    (fact,) = workplace.recorded("init")
    assert fact["same"]
    assert Path(fact["log_dir"]) == ended.logs / "user" / "entry_script_log" / "0"
    assert Path(fact["output_dir"]) == workplace.folder / "output"
    assert fact["agent_name"] == "process000"
    assert Path(fact["working_dir"]).is_dir()
    log = ended.log("user/entry_script_log/0/process000.log.txt")
    assert "info from init" in log
    assert "warning from run" in log
    assert "debug" not in log
    assert (workplace.folder / "output" / "own.txt").read_text() == "written by the script"


def test_entry_script_helper_works_in_a_plain_python(tmp_path):
    script = """
import os
from azureml_user.parallel_run import EntryScript
helper = EntryScript()
assert helper is EntryScript()
helper.logger.warning("seen on a terminal")
os.makedirs(helper.log_dir, exist_ok=True)
assert os.path.isdir(helper.output_dir)
print(helper.agent_name, helper.working_dir)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(PACKAGE)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "seen on a terminal" in ended.stdout + ended.stderr
    assert str(tmp_path) in ended.stdout


def test_azureml_core_as_scripts_use_it(workplace):
    """`Run.get_context()` and `Model.get_model_path()` work without the Azure SDK."""
    workplace.data(1)
    workplace.write({"model.txt": "the model"})
    script = """
        import argparse
        from azureml.core import Run
        from azureml.core.model import Model

        def init():
            global model
            parser = argparse.ArgumentParser(allow_abbrev=False)
            parser.add_argument("--model")
            args, _ = parser.parse_known_args()
            model = open(Model.get_model_path(args.model)).read()

        def run(files):
            run = Run.get_context()
            run.log("accuracy", 0.5)
            return [f"{model} {run.id}"]
    """
    job = workplace.job(script, side_inputs={"model": "model.txt"}, arguments=["--model", "${{side_inputs.model}}"])
    ended = job.run()
    assert ended.lines == [f"the model {ended.job_id}"]


def test_module_can_be_the_entry_script(workplace):
    """Imports a module once, under its name, so that relative imports work; a package under the package's name."""
    workplace.data(1)
    workplace.write({"code/package/__init__.py": "", "code/package/words.py": "HELLO = 'hello'"})
    for name, file in (("package.score", "package/score.py"), ("package.inner", "package/inner/__init__.py")):
        dots = "." * (file.count("/"))
        script = f"""
            from {dots}words import HELLO
            from recorder import record
            record("import", name=__name__, package=__package__)
            def run(files):
                return [HELLO]
        """
        workplace.write({f"code/{file}": script})
        job = workplace.job("", entry_script=None)
        job.file.write_text(json.dumps({**job.settings, "entry_script": name}))
        assert job.run().lines == ["hello"]
    assert [fact["name"] for fact in workplace.recorded("import")] == ["package.score", "package.inner"]


def test_named_outputs_are_existing_folders(workplace):
    workplace.data(2)
    script = """
        import os, sys
        def init():
            global images
            images = sys.argv[sys.argv.index("--images") + 1]
            open(os.path.join(os.environ["TABLES"], "a.csv"), "w").write("a")
        def run(files):
            for file in files:
                open(os.path.join(images, os.path.basename(file)), "w").write("x")
            return files
    """
    workplace.job(
        script,
        outputs={"images": "out/images", "tables": "out/tables"},
        arguments=["--images", "${{outputs.images}}"],
        environment_variables={"TABLES": "${{outputs.tables}}"},
    ).run()
    written = sorted(str(path.relative_to(workplace.folder)) for path in (workplace.folder / "out").rglob("*.*"))
    assert written == ["out/images/000.txt", "out/images/001.txt", "out/tables/a.csv"]
