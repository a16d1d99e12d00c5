"""What can be wrong with a benchmark."""


class BenchError(ValueError):
    """A benchmark that cannot be run, or whose figures could not be trusted."""


class LeakError(BenchError):
    """Something that a test example is made of was seen in training."""
