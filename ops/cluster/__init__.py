"""Three or five nats-servers that keep the same log."""
