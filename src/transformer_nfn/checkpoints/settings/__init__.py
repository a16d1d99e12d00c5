"""Settings of the function: keys of config.json as tables, and the one form they are read into."""
