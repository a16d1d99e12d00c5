"""What goes wrong with files from outside."""


class CheckpointError(ValueError):
    """A file is not what it should be, or needs something that was not given."""


class UnreadableError(CheckpointError):
    """A file that may be sound could not be read this time: permissions, a disk, a network."""
