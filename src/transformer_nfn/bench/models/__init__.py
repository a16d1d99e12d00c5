"""The models that are compared, and how each is fitted."""
