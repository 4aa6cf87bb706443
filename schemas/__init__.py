"""What can be said: the facts, where each one stands, and how it looks on the wire."""
