"""`python -m transformer_nfn` is `tnfn`."""

from transformer_nfn.cli import main

main()
