"""Every workload, on one log."""

from ops.bench.program import WORKLOADS, main

if __name__ == "__main__":
    main(*WORKLOADS)
