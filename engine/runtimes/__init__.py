"""What runs programs: `reference` (NumPy, the meaning of every op) and `native` (generated C on the CPU)."""
