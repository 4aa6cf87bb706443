"""The log on NATS JetStream: credentials, connection, protocol, streams."""
