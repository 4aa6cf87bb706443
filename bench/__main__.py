"""Every workload, on one log."""

from bench.program import WORKLOADS, main

if __name__ == "__main__":
    main(*WORKLOADS)
