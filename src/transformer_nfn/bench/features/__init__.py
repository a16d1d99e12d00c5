"""What models that are no networks see of a network."""
