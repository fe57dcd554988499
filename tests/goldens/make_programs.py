"""Writes `programs/*.txt`, the programs of the small models that `tests/unit/test_programs.py` compares with.

Run it when a change of what the compiler makes is meant, and read the difference.
"""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "unit"), str(Path(__file__).parents[2])]

from tiny import NAMES, PROGRAMS, program_text

PROGRAMS.mkdir(exist_ok=True)
for name in NAMES:
    (PROGRAMS / f"{name}.txt").write_text(program_text(name))
