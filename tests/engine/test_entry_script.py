"""The contract between the engine and an entry script: functions, arguments, results, environment."""

import itertools
import json
import os
from pathlib import Path


def test_script_sees_arguments_modules_folders_and_context(workplace):
    workplace.data(12)
    workplace.write(
        {
            "code/at_the_root.py": "VALUE = 'root'",
            "code/models/beside_the_script.py": "VALUE = 'beside'",
            "code/lookup.txt": "from the snapshot",
        }
    )
    script = """
        import argparse, os, pickle, sys
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
                   process=the_context.process_name, text=f"{the_context}", task=any_name_will_do.task_id,
                   lower=the_context.global_row_index_lower_bound, retry=the_context.retry_count,
                   pickled=type(pickle.loads(pickle.dumps(any_name_will_do))).__name__)
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
        assert variables["AZUREML_RUN_ID"] == ended.job_id
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
    for fact in runs:
        number = int(fact["index"])
        assert (fact["task"], fact["lower"], fact["retry"], fact["pickled"]) == (number, 2 * number, 0, "list")
    assert {fact["node"] for fact in runs} == {"0"}
    assert {fact["process"] for fact in runs} <= {"process000", "process001"}


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
