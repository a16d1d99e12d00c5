"""What several benchmarks and tests are run on."""
