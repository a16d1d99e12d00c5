"""The published Small Transformer Zoo: its files, and their import."""
