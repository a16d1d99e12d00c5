"""Does this network come from that one, with an exact p-value."""
