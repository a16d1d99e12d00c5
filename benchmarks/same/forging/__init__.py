"""The contest of `forgeries.py`: pairs of checkpoints made to deceive `same`, and honest copies."""
