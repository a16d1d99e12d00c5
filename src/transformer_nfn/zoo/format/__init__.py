"""What a zoo is on disk: its folder, and the columns of its shards."""
