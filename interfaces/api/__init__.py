"""The HTTP API: resources below `/api/v1`. The pages call these functions and nothing else."""
