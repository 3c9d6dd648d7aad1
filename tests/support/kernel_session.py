"""Runs cells in a real kernel, and prints what a notebook would show, as JSON. Needs jupyter_client.

Usage: kernel_session.py FOLDER < STEPS. Each step is an object with `run` (the cell) and perhaps

- `interrupt_when`: interrupts the kernel when this file exists, as the stop button does;
- `kill_when`: kills the kernel when this file exists, and starts another one;
- `then_touch`: creates this file a second later.

The answer has `status` (`ok`, `error` or `dead`), `text`, `error`, `traceback` and `data`, a list of mappings.
"""

import json
import queue
import re
import sys
import threading
import time
from pathlib import Path

from jupyter_client.manager import KernelManager

SECONDS_MAX = 120


class Session:
    """A kernel, and its successors."""

    def __init__(self, folder):
        self.folder = folder
        self.manager = None
        self.start()

    def start(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=self.folder)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, step):
        parent = self.client.execute(step["run"])
        answer = {"status": "ok", "text": "", "error": "", "traceback": "", "data": []}
        end = time.monotonic() + SECONDS_MAX
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                if self._act(step):
                    return {**answer, "status": "dead"}
                continue
            if message["parent_header"].get("msg_id") != parent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                answer["text"] += content["text"]
            elif kind in ("display_data", "execute_result"):
                answer["data"].append(content["data"])
            elif kind == "error":
                answer["status"] = "error"
                answer["error"] = f"{content['ename']}: {content['evalue']}"
                answer["traceback"] = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return answer
        raise TimeoutError(step["run"])

    def _act(self, step):
        """Does what a step asks for once its file exists. Returns whether the kernel was killed."""
        for name in ("interrupt_when", "kill_when"):
            if name in step and Path(self.folder, step[name]).exists():
                del step[name]
                if "then_touch" in step:
                    threading.Timer(1, Path(self.folder, step["then_touch"]).touch).start()
                if name == "interrupt_when":
                    self.manager.interrupt_kernel()
                    return False
                # `shutdown_kernel` interrupts it first, which a kernel may have time to handle.
                self.manager.provisioner.process.kill()
                self.manager.provisioner.process.wait()
                self.stop()
                self.start()
                return True
        return False


session = Session(sys.argv[1])
try:
    print(json.dumps([session.run(step) for step in json.load(sys.stdin)]))
finally:
    session.stop()
