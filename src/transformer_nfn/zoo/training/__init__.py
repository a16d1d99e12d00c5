"""Train a group of runs in lockstep, and measure their accuracy."""
