"""`limits`: what all processes of a job together may ask of a service."""

import csv
import re
import shutil
import signal
import subprocess
import sys

from counted_service import ASK, CountedService
from harness import INVALID, ROOT, file_names, wait_until

ASKS = f"""{ASK}
    async def run_item(item):
        return await asyncio.to_thread(ask, item)
"""


def test_processes_of_a_job_share_its_limits(workplace):
    """Waiting is no timeout: a mini-batch takes longer than run_invocation_timeout and the overhead together."""
    workplace.data(60)
    with CountedService(seconds=0.3) as service:
        job = workplace.job(
            ASKS,
            mini_batch_size=30,
            run_invocation_timeout=1,
            arguments=["--task_overhead_timeout", 1, "--progress_update_timeout", 60],
            run_max_try=1,
            process_count_per_node=2,
            limits={"requests_per_minute": 600, "concurrent": 2},
            environment_variables={"SERVICE": service.url},
        )
        ended = job.run()
    assert ended.items == (60, 60, 0)
    assert sorted(service.paths) == file_names(60)
    service.check_rate(600)
    assert service.seconds() > 6
    assert service.most == 2
    assert ended.result["warnings"] == 0 and ended.result["waited"]["limits_milliseconds"] > 6000
    assert " for the limits of the job." in ended.log("job_result.txt")


def test_script_counts_its_tokens(workplace):
    """A plain script with threads, and agents side by side."""
    workplace.data(24)
    with CountedService() as service:
        job = workplace.job(
            """
            import os
            from concurrent.futures import ThreadPoolExecutor
            from urllib.request import urlopen

            def run(files, context):
                def ask(file):
                    with context.limit.acquire(tokens=100):
                        return urlopen(os.environ["SERVICE"] + "/" + os.path.basename(file)).read().decode()
                with ThreadPoolExecutor(4) as pool:
                    return list(pool.map(ask, files))
            """,
            mini_batch_size=4,
            node_count=2,
            process_count_per_node=1,
            limits={"tokens_per_minute": 24_000},
            environment_variables={"SERVICE": service.url},
        )
        ended = job.run()
    assert ended.items == (24, 24, 0)
    assert "never asked" not in " ".join(ended.result["first_warnings"])
    service.check_rate(24_000, 100)


def test_limits_without_effect_are_named(workplace):
    workplace.data(4)
    job = workplace.job("def run(files): return files", mini_batch_size=1, limits={"requests_per_minute": 600})
    ended = job.run()
    assert ended.items == (4, 4, 0)
    (warning,) = ended.result["first_warnings"]
    assert warning.startswith("limits are set, but the script never asked for them"), warning
    assert ended.result["warnings"] == 1


def test_wrong_limits_are_named(workplace):
    workplace.data(1)
    job = workplace.job(ASKS, limits={"requests_per_minute": 0, "token_per_minute": 5})
    ended = job.run(expect=INVALID)
    assert "limits.requests_per_minute" in ended.stderr
    assert "tokens_per_minute" in ended.stderr, "the key that was meant"


def test_example_of_a_service(workplace):
    folder = workplace.folder / "examples"
    for name in ("service", "iris"):
        shutil.copytree(ROOT / "examples" / name, folder / name, ignore=shutil.ignore_patterns("output", "data"))
    service = subprocess.Popen(
        [sys.executable, folder / "service/service.py", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        address = service.stdout.readline().split()[-1]
        job = folder / "service/job.yaml"
        job.write_text(job.read_text().replace("http://127.0.0.1:8099", address))
        ended = workplace.command("run", job, "--json")
        assert ended.exit_status == 0, str(ended)
    finally:
        service.kill()
        service.wait()
    lines = (folder / "service/output/species.txt").read_text().splitlines()
    with (folder / "iris/iris.csv").open(newline="") as file:
        flowers = list(csv.reader(file))[1:]
    assert len(lines) == len(flowers) == 150
    right = sum(line.endswith(flower[-1]) for line, flower in zip(lines, flowers, strict=True))
    assert right >= 148, "flowers of the same size may be of different species"


def test_process_that_waits_for_the_limits_says_so(workplace):
    workplace.data(1)
    script = "def run(files, context):\n    context.limit.acquire()\n    return files"
    running = workplace.job(script, limits={"requests_per_minute": 1}).start()

    def told():
        return "".join(log.read_text() for log in workplace.home.glob("jobs/*/logs/sys/node/0/_main.txt"))

    wait_until(lambda: "long: " in told(), "the log names what takes long")
    assert re.search(r"process00\d, in run\(\) for \d+ s, waiting for the limits of the job", told())
    running.send(signal.SIGKILL)
    running.wait()
