"""Side inputs, arguments, Python environments, and reuse of the result of an earlier job."""

import sys
import time

from harness import INVALID, write_wheel


def test_side_inputs_are_the_input_datasets_of_the_run(workplace):
    workplace.data(1)
    workplace.write({"reference/labels.txt": "zero"})
    script = """
        from azureml.core import Run
        def run(files):
            job = Run.get_context(allow_offline=False)
            return [f"{job.id} {job.input_datasets}"]
    """
    job = workplace.job(script, side_inputs={"labels": "reference"})
    ended = job.run()
    assert ended.lines == [f"{ended.job_id} { ({'labels': str(workplace.folder / 'reference')}) }"]


def test_environment_is_created_once_from_requirements(workplace):
    """Only the requirements file provides the package; the second job reuses the environment."""
    workplace.data(1)
    package = write_wheel(workplace.folder, "tiny_package", "VALUE = 'from the environment'")
    workplace.write({"requirements.txt": f"{package}\n"})
    script = """
        import sys, tiny_package
        from recorder import record
        record("import", prefix=sys.prefix)
        def run(files):
            return [tiny_package.VALUE]
    """
    job = workplace.job(script, environment="requirements.txt")
    for _ in range(2):
        assert job.run("--fresh").lines == ["from the environment"]
    prefixes = {fact["prefix"] for fact in workplace.recorded("import")}
    assert len(prefixes) == 1
    assert prefixes != {sys.prefix}


def test_conda_packages_are_installed_by_a_tool_of_conda(workplace):
    workplace.data(1)
    workplace.add_conda_tool()
    script = """
        import sys
        def run(files):
            return [sys.prefix]
    """
    (prefix,) = workplace.job(script, environment="env.yml").run().lines
    called = (workplace.folder / "called").read_text()
    assert called == f"create --yes --quiet --prefix {prefix} --file {workplace.folder}/env.yml\n"
    ended = workplace.job(script, environment="env.yml", name="other").run()
    assert ended.lines == [prefix], "it is created once"


def test_interpreter_can_be_the_environment(workplace):
    workplace.data(1)
    link = workplace.folder / "my-python"
    link.symlink_to(sys.executable)
    script = """
        import sys
        def run(files):
            return [sys.executable]
    """
    ended = workplace.job(script, environment=str(link)).run(GRISTMILL_PYTHON="/nowhere")
    assert ended.lines == [str(link)]
    ended = workplace.job(script, environment="/nowhere/python").start().wait()
    assert ended.exit_status == 2
    assert "/nowhere/python" in ended.stderr


def test_gristmill_data_is_not_part_of_the_snapshot(workplace):
    """A home, queues and a store inside the source directory change with every job, and travel with none."""
    workplace.data(2)
    job = workplace.job("def run(files): return files", allow_reuse=True)
    home = {"GRISTMILL_HOME": str(workplace.folder / "code" / "home")}
    target = ["--queue", "sqlite:code/kept/queues", "--store", "code/kept/store"]
    for _ in range(2):
        on_target = workplace.command("run", job.file, *target, **home)
        assert on_target.exit_status == 0, str(on_target)
    assert job.run(**home).result["reused"] is False
    assert job.run(**home).result["reused"] is True
    (_,) = (workplace.folder / "code/kept/store/snapshots").iterdir()


def test_output_behind_a_url_is_reused_until_it_changes(workplace, sqs, components):
    workplace.data(1)
    job = workplace.job("def run(files): return files", output=f"s3://{sqs.prefix}/out", allow_reuse=True)
    at = {"AWS_ENDPOINT_URL": components.aws_endpoint}
    assert [job.run(**at).result["reused"] for _ in range(2)] == [False, True]
    # The store tells times in seconds.
    time.sleep(1)
    components.client("s3").put_object(Bucket=sqs.prefix, Key="out/rows.txt", Body=b"changed")
    ended = job.run(**at)
    assert ended.result["reused"] is False
    assert f"its output s3://{sqs.prefix}/out/rows.txt is missing, or was changed since" in ended.stderr


def test_unchanged_job_reuses_the_earlier_result(workplace):
    workplace.data(3)
    script = """
        import os
        from recorder import record
        def run(files):
            record("run")
            return [os.path.basename(file) for file in files]
    """

    def runs_of(*arguments, **settings):
        before = len(workplace.recorded("run"))
        ended = workplace.job(settings.pop("script", script), **{"allow_reuse": True, **settings}).run(*arguments)
        return len(workplace.recorded("run")) - before, ended

    count, first = runs_of()
    assert (count, first.result["reused"]) == (3, False)
    count, second = runs_of()
    assert (count, second.result["reused"]) == (0, True)
    assert second.job_id == first.job_id, "it says which result it takes"
    assert second.lines == first.lines
    assert f"reused the result of job {first.job_id}" in workplace.command("run", "job.yaml").stderr
    assert runs_of(allow_reuse=False)[0] == 3
    assert runs_of("--fresh")[0] == 3
    assert runs_of(description="settings that change nothing of the output")[0] == 0


def test_validate_finds_an_environment_that_cannot_be_made(workplace):
    """Nothing is installed for it, and no mini-batch runs."""
    workplace.data(1)
    files = {
        "more.txt": "six\n-r none.txt\n",
        "wheel.txt": "./none-1.0-py3-none-any.whl\n",
        "python.yml": "dependencies: [python=3.99, {pip: [six]}]\n",
        "module.yml": "dependencies: [{pip: [sklearn]}]\n",
        "no.toml/a": "",
    }
    workplace.write(files)
    for name, said in (
        ("nowhere.txt", "nowhere.txt does not exist"),
        ("more.txt", "more.txt:2: there is no file "),
        ("wheel.txt", "wheel.txt:1: there is no "),
        ("python.yml", "python.yml: it asks for Python 3.99, "),
        ("module.yml", "module.yml: sklearn is the name of a module: write scikit-learn"),
        ("no.toml", "no.toml is not a file"),
    ):
        workplace.job("def run(files): return files\n", environment=name)
        ended = workplace.command("validate", "job.yaml", PATH="/usr/bin:/bin")
        assert ended.exit_status == INVALID, f"{name}\n{ended}"
        assert said in ended.stderr, f"{name}\n{ended}"
