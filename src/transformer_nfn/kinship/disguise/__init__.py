"""The same networks after somebody moved their neurons, heads and basis: a score, no p-value."""
