"""Side inputs, arguments, Python environments, and reuse of the result of an earlier job."""

import os
import sys

READS_SIDE_INPUT = """
    import argparse, os, sys
    from recorder import record
    def init():
        global labels
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--labels_dir")
        args, _ = parser.parse_known_args()
        record("init", path=args.labels_dir, prefix=sys.prefix)
        labels = open(os.path.join(args.labels_dir, "labels.txt")).read().split()
    def run(files):
        return [labels[int(open(file).read())] for file in files]
"""


def test_side_inputs_reach_the_script_through_arguments(workplace):
    workplace.data(3)
    workplace.write({"reference/labels.txt": "zero one two"})
    job = workplace.job(
        READS_SIDE_INPUT,
        side_inputs={"labels": "reference"},
        arguments=["--labels_dir", "${{side_inputs.labels}}"],
        process_count_per_node=2,
    )
    assert job.run().lines == ["zero", "one", "two"]
    assert {fact["path"] for fact in workplace.recorded("init")} == {str(workplace.folder / "reference")}


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


def test_missing_side_input_is_an_invalid_job(workplace):
    workplace.data(1)
    job = workplace.job(READS_SIDE_INPUT, side_inputs={"labels": "nowhere"}, arguments=["--labels_dir", "x"])
    assert "nowhere" in job.run(expect=2).stderr


def test_environment_is_created_once_from_requirements(workplace):
    """Only the requirements file provides the package; the second job reuses the environment."""
    workplace.data(1)
    package = workplace.folder / "tiny_package"
    workplace.write(
        {
            "tiny_package/pyproject.toml": """
                [build-system]
                requires = []
                build-backend = "backend"
                backend-path = ["."]
                [project]
                name = "tiny-package"
                version = "1.0"
            """,
            # A minimal build backend, so that pip downloads nothing.
            "tiny_package/backend.py": """
                import zipfile
                def build_wheel(folder, config_settings=None, metadata_directory=None):
                    name = "tiny_package-1.0-py3-none-any.whl"
                    info = "tiny_package-1.0.dist-info"
                    files = {
                        "tiny_package.py": "VALUE = 'from the environment'",
                        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: tiny-package\\nVersion: 1.0\\n",
                        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
                        f"{info}/RECORD": "",
                    }
                    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
                        for path, text in files.items():
                            wheel.writestr(path, text)
                    return name
            """,
            "requirements.txt": f"tiny-package @ file://{package}\n",
        }
    )
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

    workplace.write({"bad.txt": "no-such-package-gristmill @ file:///nowhere/at/all\n"})
    ended = workplace.job(script, environment="bad.txt").start().wait()
    assert ended.exit_status in (2, 42), str(ended)
    said = ended.stderr + ended.stdout
    assert "bad.txt" in said
    assert "/nowhere/at/all" in said, "the installer's last lines"


def test_conda_file_defines_the_environment(workplace):
    """A file with only pip packages needs no conda; files in its list are relative to it."""
    workplace.data(1)
    version = ".".join(map(str, sys.version_info[:2]))
    workplace.write(
        {
            "environment.yml": f"""
                name: any
                dependencies:
                  - python={version}
                  - pip:
                    - -r none.txt
            """,
            "none.txt": "# no package",
        }
    )
    script = """
        import sys
        def run(files):
            return [sys.prefix]
    """
    ended = workplace.job(script, environment="environment.yml").run()
    assert ended.lines[0].startswith(str(workplace.home / "environments"))
    workplace.write({"environment.yml": "dependencies: [python=3.11, numpy]"})
    ended = workplace.job(script, environment="environment.yml").run(expect=2, PATH="/usr/bin:/bin")
    assert "names packages of conda (numpy)" in ended.stderr


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


def test_unchanged_job_reuses_the_earlier_result(workplace):
    """The same settings, script and inputs reuse the earlier result, and say so; any change runs again."""
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
    assert runs_of(mini_batch_size=2)[0] == 2
    assert runs_of(script=script.replace("import os", "import os  # changed"))[0] == 3
    os.utime(workplace.folder / "data" / "001.txt", (1, 1))
    assert runs_of()[0] == 3
    # The output was removed, so there is no result to reuse.
    (workplace.folder / "output" / "rows.txt").unlink()
    count, last = runs_of()
    assert last.lines == first.lines
