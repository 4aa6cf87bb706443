"""Playing recorded conversations against a policy."""
