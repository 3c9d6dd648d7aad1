"""Starts LocalStack on the host, with fixes for three bugs of LocalStack 4.13.

It takes only the port from an IPv4 address in GATEWAY_LISTEN and then listens on every address of the machine. In a
container that is right, as the container decides what is published; here it listens on 127.0.0.1 alone.

A message that is deleted by an old receipt, after its lease has lapsed, is taken from the heap of visible messages
without the lock that receivers hold. A receiver meanwhile fails within the heap, and what it had taken off is lost.
Amazon SQS loses nothing, so this is mended here; a container of LocalStack still has it.

An upload in parts that is aborted while it is being completed leaves an object without some of the parts. Amazon S3
either completes or aborts it. So does this; a container of LocalStack still does both.
"""

import functools
import heapq
import threading

from localstack.services.s3.provider import S3Provider
from localstack.services.sqs.models import StandardQueue
from twisted.internet import endpoints


def listen_on_loopback() -> None:
    """Must come before LocalStack's runtime is imported."""
    endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")


def delete_under_the_lock() -> None:
    def on_remove_message(self, message):
        if message in self.inflight:
            del self.inflight[message]
            return
        with self.visible.mutex:
            if message in self.visible.queue:
                self.visible.queue.remove(message)
                heapq.heapify(self.visible.queue)

    StandardQueue._on_remove_message = on_remove_message


def complete_or_abort() -> None:
    one_at_a_time = threading.Lock()

    def alone(operation):
        @functools.wraps(operation)
        def run(*args, **kwargs):
            with one_at_a_time:
                return operation(*args, **kwargs)

        return run

    for name in ("complete_multipart_upload", "abort_multipart_upload"):
        setattr(S3Provider, name, alone(getattr(S3Provider, name)))


if __name__ == "__main__":
    listen_on_loopback()
    delete_under_the_lock()
    complete_or_abort()
    from localstack.runtime.main import main

    main()
