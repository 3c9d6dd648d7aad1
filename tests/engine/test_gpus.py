"""Assignment of GPUs to processes: the examples of the original's documentation."""

import pytest

SCRIPT = """
    import os
    from recorder import record, recorded, wait_for

    def init():
        record("init", process=os.environ.get("GRISTMILL_PROCESS"), gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))

    def run(files, context):
        name = context.process_name
        record("run", process=name, gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))
        seen = lambda process: any(fact["process"] == process for fact in recorded("run"))
        # process000, 002 and 001 die in this order, each after the previous replacement works.
        after = {"process000": "process003", "process002": "process004", "process001": "process005"}
        if name in after:
            wait_for(lambda: seen(after[name]))
            os._exit(1)
        wait_for(lambda: seen("process006"))
        return files
"""


def test_replacement_takes_the_gpu_of_a_dead_process(workplace):
    workplace.data(12)
    job = workplace.job(SCRIPT, process_count_per_node=4, run_max_try=9)
    job.run(AZ_BATCHAI_GPU_COUNT_FOUND="2")
    gpus = {fact["process"]: fact["gpu"] for fact in workplace.recorded("run")}
    assert gpus == {
        "process000": "0",
        "process001": "1",
        "process002": None,
        "process003": None,
        "process004": "0",
        "process005": None,
        "process006": "1",
    }


EXAMPLES = {
    # GPUs, processes wanted: index of each process
    "more GPUs than processes": (4, 2, ["0", "1"]),
    "none": (0, 2, [None, None]),
    "one process by default": (2, None, ["0"]),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_gpu_indices(workplace, example):
    gpus, processes, expected = EXAMPLES[example]
    workplace.data(6)
    script = """
        import os
        from recorder import record, recorded, wait_for
        def init():
            record("init", gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))
        def run(files):
            wait_for(lambda: len(recorded("init")) >= int(os.environ["PROCESSES"]))
            return files
    """
    job = workplace.job(script, process_count_per_node=processes)
    job.run(AZ_BATCHAI_GPU_COUNT_FOUND=str(gpus), PROCESSES=str(len(expected)))
    assert sorted((fact["gpu"] for fact in workplace.recorded("init")), key=str) == expected


def test_unassigned_processes_can_see_no_gpu(workplace):
    workplace.data(6)
    script = """
        import os
        from recorder import record, recorded, wait_for
        def init():
            record("init", gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))
        def run(files):
            wait_for(lambda: len(recorded("init")) == 2)
            return files
    """
    workplace.job(script, process_count_per_node=2, hide_unassigned_gpus=True).run(AZ_BATCHAI_GPU_COUNT_FOUND="1")
    assert sorted(fact["gpu"] for fact in workplace.recorded("init")) == ["", "0"]
