"""``gpus=``: GPUs for each process."""

import os

import numpy as np
import pytest

import gristmill
from gristmill.api.gpus import with_gpu_keys

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(
    ("gpus", "keys"),
    [
        (None, {}),
        (1, {"gpus_per_process": 1}),
        (8, {"gpus_per_process": 8}),
        (np.int64(2), {"gpus_per_process": 2}),
        (0.5, {"process_count_per_gpu": 2}),
        (0.25, {"process_count_per_gpu": 4}),
        (1 / 3, {"process_count_per_gpu": 3}),
        (1 / 49, {"process_count_per_gpu": 49}),
    ],
)
def test_gpus_of_a_process_are_keys_of_the_job_file(gpus, keys):
    assert with_gpu_keys({"run_max_try": 2, "gpus": gpus}) == {"run_max_try": 2, **keys}


@pytest.mark.parametrize("gpus", [0, -1, 1.5, 0.4, 0.33, float("nan"), float("inf"), True, "2", [1]])
def test_other_numbers_of_gpus_are_refused(gpus):
    with pytest.raises(ValueError, match=r"gpus is .*; allowed: .*a whole number, or a part of one, such as 0\.5"):
        gristmill.submit(lambda items: items, [1], gpus=gpus)


def test_gpus_and_a_key_of_the_job_file_exclude_each_other():
    with pytest.raises(ValueError, match="gpus and process_count_per_gpu are both given"):
        gristmill.run(lambda items: items, [1], gpus=1, process_count_per_gpu=2)


@pytest.mark.parametrize(
    ("gpus", "seen"), [(2, ["0,1", "2,3"]), (0.5, ["0", "0", "1", "1", "2", "2", "3", "3"])], ids=["two", "half of one"]
)
def test_each_process_sees_its_gpus(gpus, seen, tmp_path, monkeypatch):
    """The processes wait for each other, so that each gets a mini-batch."""
    monkeypatch.setenv("AZ_BATCHAI_GPU_COUNT_FOUND", "4")
    processes = tmp_path / "processes"
    processes.mkdir()
    folder, count = str(processes), len(seen)

    def look(items):
        import time
        from pathlib import Path

        (Path(folder) / str(os.getpid())).touch()
        while len(list(Path(folder).iterdir())) < count:
            time.sleep(0.01)
        return [os.environ["CUDA_VISIBLE_DEVICES"]] * len(items)

    job = gristmill.run(look, list(range(4 * count)), gpus=gpus, mini_batch_size=1, progress=False)
    assert sorted(set(job.to_pandas()["value"])) == sorted(set(seen))
    assert len(list(processes.iterdir())) == count
