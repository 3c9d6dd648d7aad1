"""Deletes messages of LocalStack's SQS with expired receipts while others are received, and fails if messages are lost.

Runs within LocalStack's own Python environment. Argument: the folder of `on_the_host.py`.
"""

import sys
import threading
import time

from localstack.services.sqs.models import StandardQueue

MESSAGES = 3000
ROUNDS = 5


def race() -> list[str]:
    """Returns the errors."""
    queue = StandardQueue("raced", "us-east-1", "000000000000")
    for number in range(MESSAGES):
        queue.put({"MessageId": str(number), "Body": ""})
    lapsed = queue.receive(MESSAGES, 0, 1)
    time.sleep(1.1)
    queue.requeue_inflight_messages()
    late = MESSAGES // 2
    deleted = {message.message_id for message in lapsed.successful[:late]}
    received: set[str] = set()
    wrong: list[str] = []

    def receive() -> None:
        while taken := queue.receive(10, 0, 600).successful:
            received.update(message.message_id for message in taken)

    def delete() -> None:
        for receipt in lapsed.receipt_handles[:late][::-1]:
            queue.remove(receipt)

    threads = [threading.Thread(target=run) for run in (receive, receive, delete)]
    threading.excepthook = lambda failed: wrong.append(repr(failed.exc_value))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost = MESSAGES - len(deleted | received)
    return [*wrong, *([f"{lost} messages lost"] if lost else [])]


sys.setswitchinterval(1e-5)
if len(sys.argv) > 1:
    sys.path.insert(0, sys.argv[1])
    from on_the_host import delete_under_the_lock

    delete_under_the_lock()
sys.exit("\n".join(problem for _ in range(ROUNDS) for problem in race()) or 0)
