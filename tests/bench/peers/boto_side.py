"""The peer on SQS: a plain boto3 loop that only receives and deletes. It runs and records nothing.

The messages are in the queue before the clock starts.
It prints its seconds. Usage: boto_side.py ENDPOINT_URL MESSAGES OUTPUT, where OUTPUT is not written
"""

import json
import sys
import time
import uuid

import boto3


def main(endpoint: str, messages: int) -> None:
    sqs = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1")
    queue = sqs.create_queue(QueueName=f"boto-side-{uuid.uuid4().hex}")["QueueUrl"]
    try:
        for start in range(0, messages, 10):
            numbers = range(start, min(start + 10, messages))
            entries = [{"Id": str(number), "MessageBody": json.dumps({"mini_batch": number})} for number in numbers]
            sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        started = time.perf_counter()
        left = messages
        while left > 0:
            received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=5)
            handles = [message["ReceiptHandle"] for message in received.get("Messages", [])]
            if handles:
                entries = [{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(handles)]
                sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
            left -= len(handles)
        print(json.dumps({"seconds": time.perf_counter() - started}))
    finally:
        sqs.delete_queue(QueueUrl=queue)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
