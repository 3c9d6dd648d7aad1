"""The arguments of ``run(mini_batch, context)``, except DataFrames."""


class MiniBatchFiles(list):
    """The files of a mini-batch. ``task_id`` is its number, which scripts for Azure ML read."""

    __slots__ = ("task_id",)

    def __reduce_ex__(self, protocol):
        # Other processes may lack this package, so they get a plain list.
        return list, (list(self),)


class MiniBatchContext:
    """Describes the mini-batch of the current call.

    ``partition_key_value``: key values by name, in the order of ``partition_keys``; empty without keys.
    ``minibatch_index``, ``mini_batch_id``: number of the mini-batch, from 0, the same in every attempt.
    ``attempt``: number of this try, from 1. ``retry_count``: tries before it. ``node_id``, ``process_name``: where it
    runs. ``global_row_index_lower_bound``: number of files, or rows, of the input before this mini-batch; see the
    property.
    ``dataset``: the mini-batch itself, the list of paths or the frame.
    ``limit``: the limits of the job, which all its processes share.
    ``done(item, row)``: hands back the result of an item.
    """

    __slots__ = (
        "_frame",
        "_handing_back",
        "_items_before",
        "_limit",
        "attempt",
        "dataset",
        "mini_batch_id",
        "minibatch_index",
        "node_id",
        "partition_key_value",
        "process_name",
        "retry_count",
    )

    def __init__(self, mini_batch, dataset, node, process, items_per_mini_batch, limit=None, handing_back=None):
        self._limit = limit
        self._frame = mini_batch
        self._handing_back = handing_back
        self.partition_key_value = dict(mini_batch.get("key", ()))
        # A job may run mini-batches of another one.
        self.minibatch_index = self.mini_batch_id = mini_batch.get("shown_as", mini_batch["mini_batch"])
        self.attempt = mini_batch["try_number"]
        self.retry_count = self.attempt - 1
        self._items_before = mini_batch.get("rows_before")
        if items_per_mini_batch is not None:
            self._items_before = items_per_mini_batch * self.minibatch_index
        if self._items_before is not None and "items" in mini_batch:
            # A range of the mini-batch.
            self._items_before += mini_batch["items"][0]
        self.node_id = node
        self.process_name = process
        self.dataset = dataset

    @property
    def global_row_index_lower_bound(self):
        """Number of items before this mini-batch, if planning has counted them: it splits plain text by bytes."""
        if self._items_before is None:
            raise NotImplementedError(
                "global_row_index_lower_bound is not known: planning does not count the rows of text that is cut by "
                "bytes, nor those of partition keys, nor the files of several inputs. Set mini_batch_size to a number "
                "of rows, such as `500 rows`, or leave out partition_keys"
            )
        return self._items_before

    @property
    def limit(self):
        """The ``limits`` of the job: ``limit.acquire(tokens=…)`` waits until they allow a request."""
        if self._limit is None:
            # Few jobs have limits.
            from gristmill.limits import Limit

            self._limit = Limit()
        return self._limit

    @property
    def resumes(self):
        """Whether results of an earlier try are kept, so that this one gets the other items."""
        return self._handing_back is not None and self._handing_back.done is not None

    @property
    def doubted(self):
        """Whether no item of the last mini-batches has succeeded, so that a few failures are enough to give up."""
        return self._frame.get("doubted", False)

    def done(self, item, row=None):
        """Hands back the row of an item before ``run`` has ended, so that no later try runs the item again.

        ``item``: its path as in the list of files, or its position in the mini-batch. ``row``: an element of the list
        that ``run`` would return; ``None``: the item has no row. Any thread of the process may call it.
        """
        self._handing_back.take(self._frame, item, row)

    def __repr__(self):
        return (
            f"MiniBatchContext(minibatch_index={self.minibatch_index}, attempt={self.attempt}, "
            f"partition_key_value={self.partition_key_value}, node_id={self.node_id!r}, "
            f"process_name={self.process_name!r})"
        )
