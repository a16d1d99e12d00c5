"""What goes wrong with files from outside."""


class CheckpointError(ValueError):
    """A file is not what it should be, or needs something that was not given."""


class UnsupportedError(CheckpointError):
    """A file that may be sound is of no architecture we read."""


class UnreadableError(CheckpointError):
    """A file that may be sound could not be read this time: permissions, a disk, a network."""
