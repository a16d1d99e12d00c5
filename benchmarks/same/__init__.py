"""Whether `same` is right, and cannot be deceived."""
