"""The `egglm` command, also as `python -m server`.

Nothing is imported here: the engine's process, which is spawned, runs this module too.
"""


def main() -> None:
    from server.cli import main

    main()


if __name__ == "__main__":
    main()
