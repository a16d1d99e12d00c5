"""What readers see of a network."""
