"""The shipped recipes, as TOML."""
