"""Classes of the SDK that need a workspace. Their use raises an error that names the alternative."""

NO_SERVICE = (
    "no service keeps pipelines here: call submit, and start this driver regularly with cron, a systemd timer or a "
    "scheduler of your cloud"
)


def refused(name, instead):
    """Returns the error."""
    return NotImplementedError(f"{name}: {instead}")


class PublishedPipeline:
    """A published pipeline. This machine has none."""

    @staticmethod
    def list(*_, **__):
        """Returns an empty list."""
        return []

    get_all = list

    @staticmethod
    def get(*_, **__):
        """Raises an error that names the alternative."""
        raise refused("PublishedPipeline.get", NO_SERVICE)


class PipelineEndpoint:
    """The address of a published pipeline. This machine has none."""

    @staticmethod
    def list(*_, **__):
        """Returns an empty list."""
        return []

    @staticmethod
    def get(*_, **__):
        """Raises an error that names the alternative."""
        raise refused("PipelineEndpoint", NO_SERVICE)

    publish = get


class ScheduleRecurrence:
    """The times at which a schedule starts a pipeline."""

    def __init__(self, *_, **__):
        pass


class Schedule:
    """A schedule of the service. This machine has none."""

    @staticmethod
    def list(*_, **__):
        """Returns an empty list."""
        return []

    @staticmethod
    def create(*_, **__):
        """Raises an error that names the alternative."""
        raise refused(
            "Schedule.create", "start this driver regularly with cron, a systemd timer or a scheduler of your cloud"
        )
