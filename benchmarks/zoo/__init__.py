"""Building zoos."""
