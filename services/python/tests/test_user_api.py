"""`EntryScript`, and the stand-in for `azureml.core`."""

import os
import subprocess
import sys
import textwrap

from agent import PACKAGE


def test_entry_script_in_a_worker(start):
    agent = start(
        """
        from azureml_user.parallel_run import EntryScript
        def init():
            global logger
            logger = EntryScript().logger
            logger.info("in init")
        def run(mini_batch):
            entry = EntryScript()
            logger.debug("hidden")
            logger.setLevel("DEBUG")
            logger.debug("shown")
            return [entry is EntryScript(), entry.log_dir, entry.output_dir, entry.agent_name, entry.working_dir,
                    entry.dir, entry.logging_level]
        """,
        name="code/score.py",
    )
    assert agent.run()["rows"].decode().splitlines() == [
        "True", str(agent.logs / "user/entry_script_log/0"), str(agent.output), "process000", str(agent.snapshot),
        str(agent.snapshot / "code"), "INFO",
    ]  # fmt: skip
    assert agent.output.is_dir()
    lines = agent.log("user/entry_script_log/0/process000.log.txt").splitlines()
    assert [line.split("|")[-1] for line in lines] == ["in init", "shown"]
    time, name, level, pid, thread, function, _ = lines[0].split("|")
    assert (name, level, pid, function) == ("EntryScript", "INFO", str(agent.process.pid), "init()")
    assert len(time) == len("2020-01-01 00:00:00,000") and thread.isdigit()
    assert agent.stdout() == ""


def test_logger_is_an_ordinary_logger_and_the_output_folder_defaults_to_the_working_directory(start):
    agent = start(
        """
        import logging, sys
        from azureml_user.parallel_run import EntryScript
        def run(mini_batch):
            logger = EntryScript(logging_level="WARNING").logger
            logger.info("hidden")
            logger.addHandler(logging.StreamHandler(sys.stderr))
            logger.propagate = True
            logger.warning("everywhere")
            return [EntryScript().output_dir]
        """,
        output=None,
    )
    assert agent.run()["rows"].decode().strip() == str(agent.snapshot)
    assert agent.log("user/entry_script_log/0/process000.log.txt").endswith("|run()|everywhere\n")
    assert agent.stderr() == "everywhere\n" and "|EntryScript|WARNING|" in agent.stdout()


def local(tmp_path, script, **environment):
    (tmp_path / "local.py").write_text(textwrap.dedent(script))
    shims = PACKAGE / "gristmill" / "shims"
    ended = subprocess.run(
        [sys.executable, "local.py"],
        cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{shims}", **environment},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended


def test_entry_script_works_in_a_plain_python(tmp_path):
    script = """
    from azureml_user.parallel_run import EntryScript
    entry = EntryScript()
    entry.logger.info("hello")
    print(entry.log_dir, entry.output_dir, entry.agent_name, entry.working_dir, entry.dir, sep="\\n")
    """
    ended = local(tmp_path, script)
    assert ended.stderr.endswith("|<module>()|hello\n")
    assert ended.stdout.splitlines() == [
        f"{tmp_path}/logs/user/entry_script_log/0", str(tmp_path), "process000", str(tmp_path), str(tmp_path),
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["local.py"], "nothing is left behind"
    ended = local(tmp_path, script, AZUREML_BI_OUTPUT_PATH=str(tmp_path / "made"))
    assert ended.stdout.splitlines()[1] == str(tmp_path / "made") and (tmp_path / "made").is_dir()
