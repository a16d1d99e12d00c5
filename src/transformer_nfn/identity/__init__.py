"""Same function or not: verdicts with certificates, fingerprints, copies in disguise."""
