"""One disturbed run of bulk work."""
