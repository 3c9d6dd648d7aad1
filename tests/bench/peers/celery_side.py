"""The peer on RabbitMQ: the same mini-batches as Celery tasks, acknowledged late, with results.

The worker starts before the clock, which runs from the first task sent to the last result received; so neither the
start of Celery nor that of its processes counts.
Usage: celery_side.py BROKER_URL FOLDER PROCESSES OUTPUT
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from celery import Celery
from listing import files_of

app = Celery("celery_side", broker=os.environ.get("CELERY_SIDE_BROKER"), backend="rpc://")
app.conf.update(
    task_acks_late=True,
    task_default_queue=os.environ.get("CELERY_SIDE_QUEUE", "celery-side"),
    worker_prefetch_multiplier=32,
    result_expires=3600,
    worker_hijack_root_logger=False,
)


@app.task(name="run")
def run(files):
    return files


def main(broker: str, folder: str, processes: str, output: str) -> None:
    environment = {**os.environ, "CELERY_SIDE_BROKER": broker, "CELERY_SIDE_QUEUE": f"celery-side-{uuid.uuid4().hex}"}
    app.conf.update(broker_url=broker, task_default_queue=environment["CELERY_SIDE_QUEUE"])
    command = [sys.executable, "-m", "celery", "-A", "celery_side", "worker", "--concurrency", processes]
    worker = subprocess.Popen(
        [*command, "--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"],
        cwd=Path(__file__).resolve().parent,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        run.delay([]).get(timeout=60)
        started = time.perf_counter()
        with app.producer_pool.acquire(block=True) as producer:
            results = [run.apply_async(([file],), producer=producer) for file in files_of(folder)]
        with open(output, "w") as rows:
            for result in results:
                rows.writelines(f"{element}\n" for element in result.get(timeout=600))
        print(json.dumps({"seconds": time.perf_counter() - started}))
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(environment["CELERY_SIDE_QUEUE"])


if __name__ == "__main__":
    main(*sys.argv[1:])
