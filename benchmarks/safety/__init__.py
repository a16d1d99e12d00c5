"""Files that were made to hurt."""
