"""The CPU runtime: kernels are generated C, compiled at start-up, and a step is one foreign call.

`runtime.py` holds data and runs; `linking.py` turns a program into the tables that `driver.c` walks; `kernels.py`
compiles kernels; `folding.py` packs weights; `profiling.py` times candidates.
"""
