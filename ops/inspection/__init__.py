"""The monitor: probes and metrics of one broker, over HTTP."""
