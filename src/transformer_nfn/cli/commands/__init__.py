"""The commands, each or each group in a file."""
