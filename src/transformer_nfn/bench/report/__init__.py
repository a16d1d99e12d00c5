"""The report: its sections, its page and its file for machines."""
