"""Jobs on the GPU of this machine. Other tests make up a number of GPUs; these need an NVIDIA driver and the libraries
that they name, and are skipped without them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import subprocess

import pytest

from harness import file_names, wait_until

HAS_GPU = bool(shutil.which("nvidia-smi")) and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
pytestmark = [pytest.mark.skipif(not HAS_GPU, reason="this machine has no NVIDIA GPU"), pytest.mark.xdist_group("gpu")]
MODULUS = 1_000_003


@pytest.fixture(autouse=True)
def counted_by_the_driver(workplace):
    del workplace.environment["AZ_BATCHAI_GPU_COUNT_FOUND"]


def needs(*libraries: str) -> pytest.MarkDecorator:
    missing = [library for library in libraries if importlib.util.find_spec(library) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


COMPUTES = f"""
    import os, time
    import torch
    from recorder import record
    def init():
        record("init", gpus=os.environ.get("CUDA_VISIBLE_DEVICES"), seen=torch.cuda.device_count())
    def run(files):
        at = time.time()
        first = torch.tensor([int(open(file).read()) for file in files], device="cuda")
        numbers = first[:, None] * 1000 + torch.arange(1000, device="cuda")
        rows = ((numbers * numbers) % {MODULUS}).sum(dim=1).tolist()
        record("run", job=os.environ.get("JOB"), at=at, until=time.time())
        return rows
"""


def expected_rows(count: int) -> list[str]:
    return [
        str(sum(number * number % MODULUS for number in range(file * 1000, file * 1000 + 1000)))
        for file in range(count)
    ]


@needs("torch")
def test_rows_computed_on_a_gpu_are_those_of_the_processor(workplace):
    workplace.data(40)
    job = workplace.job(COMPUTES, process_count_per_node=None, arguments=["--resource_monitor_interval", 1])
    ended = job.run()
    assert ended.mini_batches == (40, 40, 0)
    assert ended.lines == expected_rows(40)
    assert [(fact["gpus"], fact["seen"]) for fact in workplace.recorded("init")] == [("0", 1)], "one process by default"
    [process] = ended.table("sys/job_report/process_summary.csv")
    assert process["GPU"] == "0" and float(process["GPU Busy Seconds"]) > 0, process
    name = subprocess.check_output(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"])
    samples = ended.table("perf/0/node_gpu_usage.csv")
    model, memory = name.decode().splitlines()[0].split(", ")
    assert samples[0]["Name"] == model and abs(float(samples[0]["Memory Total (MB)"]) / float(memory) - 1) < 0.1, (
        samples
    )


@needs("torch")
def test_gpu_may_be_named_by_its_uuid(workplace):
    uuid = subprocess.check_output(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], text=True).split()[-1]
    workplace.data(4)
    job = workplace.job(COMPUTES, process_count_per_node=None, arguments=["--resource_monitor_interval", 1])
    ended = job.run(CUDA_VISIBLE_DEVICES=uuid)
    assert ended.lines == expected_rows(4)
    assert [(fact["gpus"], fact["seen"]) for fact in workplace.recorded("init")] == [(uuid, 1)]
    assert {sample["Gpu"] for sample in ended.table("perf/0/node_gpu_usage.csv")} == {"0"}


@needs("torch")
def test_process_has_all_gpus_of_the_machine(workplace):
    gpus = len(subprocess.check_output(["nvidia-smi", "-L"]).splitlines())
    workplace.data(20)
    job = workplace.job(COMPUTES, gpus_per_process=gpus, process_count_per_node=None)
    assert job.run().lines == expected_rows(20)
    numbers = ",".join(map(str, range(gpus)))
    assert [(fact["gpus"], fact["seen"]) for fact in workplace.recorded("init")] == [(numbers, gpus)]


@needs("torch")
def test_two_processes_share_a_gpu(workplace):
    script = COMPUTES.replace("from recorder import record", "from recorder import record, recorded, wait_for")
    script = script.replace("at = time.time()", 'at = time.time(); wait_for(lambda: len(recorded("init")) == 2)')
    workplace.data(40)
    job = workplace.job(script, process_count_per_gpu=2, process_count_per_node=None)
    assert job.run(CUDA_VISIBLE_DEVICES="0").lines == expected_rows(40)
    assert [(fact["gpus"], fact["seen"]) for fact in workplace.recorded("init")] == [("0", 1)] * 2


FILLS = {
    "torch": "torch.empty(1 << 42, dtype=torch.uint8, device='cuda')",
    "cupy": "cupy.zeros(1 << 42, dtype='uint8')",
    "jax": "jax.numpy.zeros(1 << 42, dtype='uint8').block_until_ready()",
    "numba": "numba.cuda.device_array(1 << 42, dtype='uint8')",
}
BREAKS = {
    "torch": "torch.zeros(3, device='cuda')[torch.tensor([9], device='cuda')].sum().item()",
    "cupy": """(cupy.RawKernel('extern "C" __global__ void f(int* p) { p[1ull << 40] = 1; }', "f")(
        (1,), (1,), (cupy.zeros(1, dtype="int32"),)), cupy.cuda.runtime.deviceSynchronize())""",
}
FAILS = """
    import os
    import {module}
    from recorder import record, recorded
    def run(files):
        record("run", pid=os.getpid())
        if len(recorded("run")) <= {failures}:
            {failure}
        return [os.path.basename(file) for file in files]
"""


def replaces_after(workplace, library: str, failure: str, failures: int) -> None:
    """Runs a job whose first runs fail so. The first process has these runs, and its replacement all others."""
    module = {"jax": "jax.numpy", "numba": "numba.cuda"}.get(library, library)
    script = FAILS.format(module=module, failure=" ".join(failure.split()), failures=failures)
    workplace.data(6)
    ended = workplace.job(script, process_count_per_node=None, run_max_try=3).run(NUMBA_CUDA_LOG_LEVEL="CRITICAL")
    assert (ended.mini_batches, ended.lines) == ((6, 6, 0), file_names(6)), ended.log("user/error.txt")
    assert ended.result["notes"] == ["1 process was replaced: 1 after a GPU failure"], ended.log("user/error.txt")
    processes = [fact["pid"] for fact in workplace.recorded("run")]
    assert [len(list(runs)) for _, runs in itertools.groupby(processes)] == [failures, 6]


@pytest.mark.parametrize("library", [pytest.param(library, marks=needs(library)) for library in FILLS])
def test_process_whose_gpu_is_full_twice_is_replaced(workplace, library):
    replaces_after(workplace, library, FILLS[library], 2)


@pytest.mark.parametrize("library", [pytest.param(library, marks=needs(library)) for library in BREAKS])
def test_process_that_has_lost_its_gpu_is_replaced_at_once(workplace, library):
    replaces_after(workplace, library, BREAKS[library], 1)


@needs("torch")
def test_process_that_keeps_the_memory_of_its_gpu_is_replaced(workplace):
    workplace.data(12)
    script = """
        import os
        import torch
        from recorder import record
        kept = []
        def run(files):
            record("run", pid=os.getpid())
            part = torch.cuda.mem_get_info()[1] // 5
            kept.append(torch.ones(part, dtype=torch.uint8, device="cuda"))
            assert int(kept[-1][::4096].sum()) == -(-part // 4096)
            return [os.path.basename(file) for file in files]
    """
    ended = workplace.job(script, process_count_per_node=None, run_max_try=3).run()
    assert (ended.mini_batches, ended.lines) == ((12, 12, 0), file_names(12)), ended.log("user/error.txt")
    processes = {fact["pid"] for fact in workplace.recorded("run")}
    [note] = ended.result["notes"]
    assert note == f"{len(processes) - 1} processes were replaced: {len(processes) - 1} after a GPU failure"


@needs("torch")
def test_jobs_take_turns_on_the_gpu(workplace, sqlite):
    """Both have more than one mini-batch of work, and neither runs while the other has the GPU."""
    sqlite.reducer()
    jobs = [
        workplace.job_of_its_own(name, 20, COMPUTES, process_count_per_node=None, requires={"gpus": 1})
        for name in ("first", "second")
    ]
    enqueued = [sqlite.enqueue(job) for job in jobs]
    gpus = len(subprocess.check_output(["nvidia-smi", "-L"]).splitlines())
    sqlite.worker("--node", "here", "--process-count", 1)
    offered = workplace.folder / sqlite.prefix / "store/workers/here"
    wait_until(offered.exists, "the entry of the worker")
    assert json.loads(offered.read_text())["offer"]["gpus"] == gpus
    too_many = workplace.job_of_its_own("third", 1, COMPUTES, requires={"gpus": gpus + 1})
    warning = sqlite.command("enqueue", too_many.file, expect=0).stderr
    assert f"the job requires {gpus + 1}" in warning, warning
    for job, job_id in zip(jobs, enqueued, strict=True):
        result = sqlite.wait_for_end(job_id)
        assert sqlite.output(result).decode().splitlines() == expected_rows(20), job.file
    if gpus == 1:
        runs = sorted((fact["at"], fact["until"], fact["job"]) for fact in workplace.recorded("run"))
        assert len(runs) == 40
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(runs)), "one GPU, one job at a time"
