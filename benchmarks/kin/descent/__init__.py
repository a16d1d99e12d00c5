"""Networks of known descent, and the methods that are asked about it."""
