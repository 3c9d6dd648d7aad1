"""Profilers of ``run``, which ``profiling_module`` of the job chooses."""


def make_profiler(module_name):
    """Returns the profiler of the named module, or ``None``."""
    if not module_name:
        return None
    if module_name == "profile":
        return PureProfiler()
    import cProfile

    return cProfile.Profile()


class PureProfiler:
    """``profile``, whose own class cannot be used for a second call."""

    def __init__(self):
        self._total = None

    def runcall(self, function, *arguments):
        import profile
        import pstats

        profiler = profile.Profile()
        try:
            return profiler.runcall(function, *arguments)
        finally:
            if self._total is None:
                self._total = pstats.Stats(profiler)
            else:
                self._total.add(profiler)

    def dump_stats(self, path):
        if self._total is not None:
            self._total.dump_stats(path)
