"""Commands about who comes from whom."""
