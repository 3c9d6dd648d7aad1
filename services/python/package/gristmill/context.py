"""The second argument of ``run(mini_batch, context)``."""


class MiniBatchContext:
    """What a script may know about the mini-batch it works on.

    ``partition_key_value``: key values by name, in the order of ``partition_keys``; empty without keys.
    ``minibatch_index``, ``mini_batch_id``: number of the mini-batch, from 0, the same in every attempt.
    ``attempt``: number of this try, from 1. ``node_id``, ``process_name``: who runs it.
    ``dataset``: the mini-batch itself, the list of paths or the frame.
    """

    __slots__ = (
        "attempt",
        "dataset",
        "mini_batch_id",
        "minibatch_index",
        "node_id",
        "partition_key_value",
        "process_name",
    )

    def __init__(self, mini_batch, dataset, node, process):
        self.partition_key_value = dict(mini_batch.get("key", ()))
        self.minibatch_index = self.mini_batch_id = mini_batch["mini_batch"]
        self.attempt = mini_batch["try_number"]
        self.node_id = node
        self.process_name = process
        self.dataset = dataset

    def __repr__(self):
        return (
            f"MiniBatchContext(minibatch_index={self.minibatch_index}, attempt={self.attempt}, "
            f"partition_key_value={self.partition_key_value}, node_id={self.node_id!r}, "
            f"process_name={self.process_name!r})"
        )
