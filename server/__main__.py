"""`python -m server` is `egglm`."""

from server.cli import main

if __name__ == "__main__":  # the engine's process, which is spawned, imports this module too
    main()
