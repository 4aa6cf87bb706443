"""Benchmarks: what this program costs, compared with a lower bound.

    python -m bench                         every workload, on one log of a million facts
    python -m bench.replay --facts 100000   one of them

Each workload measures ours and its *floor* in turns, in the same run: the floor is the same work
done by nats-py and the broker alone, or by ours under more favourable conditions.
Machines differ and are shared, so a ratio carries over and a figure does not. The results are
in `docs/performance.md`.
"""
