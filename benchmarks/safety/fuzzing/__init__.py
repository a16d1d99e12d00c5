"""What `fuzz.py` is made of: readers, their inputs, and what changes these."""
