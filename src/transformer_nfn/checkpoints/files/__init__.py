"""The files of a checkpoint: where they are, their headers, their tensors by name."""
