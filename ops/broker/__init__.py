"""Starting, configuring and watching nats-server."""
