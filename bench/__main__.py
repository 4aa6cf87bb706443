"""Measure every workload, or those that are named, on one log: `python -m bench cycle replay`."""

from bench.program import main

if __name__ == "__main__":
    main()
