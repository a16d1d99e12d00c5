"""Files that `hostile.py` opens."""
