"""The jobs of the soak: ten kinds, whose output is the same no matter what happens while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness import Job, Workplace

REPAIRED = "repaired"
"""A job that fails succeeds once this file exists in its workplace."""
TABLE_ROWS = 6000


@dataclass(frozen=True)
class Kind:
    """A kind of job, with the state in which it first ends."""

    name: str
    script: str
    settings: dict[str, Any]
    files: int = 0
    """Number of files of the input; 0: the table."""
    state: str = "Completed"
    cancel_after: int = 0
    """Cancels the job once this number of mini-batches has succeeded."""
    is_retried: bool = False
    spares_processes: bool = False
    """The death of a process would change the output."""

    def write_input(self, workplace: Workplace) -> None:
        if self.files:
            workplace.data(self.files, f"data/{self.name}")
        else:
            lines = "".join(f"{number},name {number % 7},{number / 8}\n" for number in range(TABLE_ROWS))
            workplace.write({f"data/{self.name}/table.csv": "id,name,value\n" + lines})

    def job(self, workplace: Workplace) -> Job:
        if not (workplace.folder / "data" / self.name).exists():
            self.write_input(workplace)
        form = {"type": "file"} if self.files else {"type": "tabular", "format": "csv"}
        names = {"file": f"{self.name}.yaml", "entry_script": f"{self.name}.py", "output": f"output/{self.name}"}
        return workplace.job(
            self.script,
            name=self.name,
            inputs=[{"name": "data", "path": f"data/{self.name}", **form}],
            environment_variables={"REPAIRED": str(workplace.folder / REPAIRED)},
            process_count_per_node=2,
            **names,
            # Faults end processes: the script fails more rarely than a mini-batch may.
            **{"run_max_try": 6, **self.settings},
        )


KINDS = [
    # Quick ones travel in bundles.
    Kind("no-ops", "import os\ndef run(files): return [os.path.basename(files[0])]", {}, files=2000),
    Kind(
        "files",
        """
        import hashlib, os, time
        def run(files):
            time.sleep(0.05 * len(files))
            return [f"{os.path.basename(file)} {hashlib.sha256(open(file, 'rb').read()).hexdigest()}" for file in files]
        """,
        {"mini_batch_size": 2},
        files=400,
    ),
    Kind(
        "csv",
        """
        import time
        def run(table):
            time.sleep(0.1)
            return table.assign(square=table["id"] ** 2, text=table["name"] + ", \\"quoted\\"")
        """,
        {"mini_batch_size": "50 rows", "append_row_file_name": "rows.csv", "output_format": "native"},
    ),
    Kind(
        "json-lines",
        """
        import time
        def run(table):
            time.sleep(0.1)
            return [{"id": row.id, "more": {"name": row.name, "half": row.value / 2}} for row in table.itertuples()]
        """,
        {"mini_batch_size": "100 rows", "append_row_file_name": "rows.jsonl", "output_format": "native"},
    ),
    Kind(
        "isolation",
        """
        import os, time
        def run(files):
            time.sleep(0.1)
            names = [os.path.basename(file) for file in files]
            for name in names:
                if int(name[:-4]) % 50 == 7:
                    raise ValueError(f"bad item {name}")
            return names
        """,
        {"mini_batch_size": 10, "run_max_try": 1},
        files=400,
        spares_processes=True,
    ),
    Kind(
        "retries",
        """
        import os, time
        def run(files, context):
            name = os.path.basename(files[0])
            time.sleep(0.05)
            if context.attempt == 1 and int(name[:-4]) % 4 == 0:
                raise ValueError("the first try fails")
            return [name]
        """,
        {},
        files=200,
    ),
    Kind(
        "checkpoints",
        """
        import os, time
        def run(files):
            for file in files:
                time.sleep(0.03)
                yield file, f"row of {os.path.basename(file)}"
        """,
        {"mini_batch_size": 20},
        files=400,
    ),
    Kind(
        "large-rows",
        """
        import os, time
        def run(files):
            time.sleep(0.1)
            return [f"{os.path.basename(files[0])} {'x' * 300_000}"]
        """,
        {},
        files=60,
    ),
    Kind(
        "canceled",
        """
        import os, time
        def run(files):
            time.sleep(0.3)
            return [os.path.basename(files[0])]
        """,
        {},
        files=2000,
        state="Canceled",
        cancel_after=20,
    ),
    Kind(
        "retried",
        """
        import os, time
        def run(files):
            name = os.path.basename(files[0])
            time.sleep(0.05)
            if int(name[:-4]) % 10 == 3 and not os.path.exists(os.environ["REPAIRED"]):
                raise ValueError("not repaired")
            return [name]
        """,
        {"error_threshold": 0, "run_max_try": 3},
        files=200,
        state="Failed",
        is_retried=True,
    ),
]
