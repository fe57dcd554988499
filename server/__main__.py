"""`python -m server` is `egglm`."""

from server.cli import main

main()
