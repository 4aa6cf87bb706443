"""What is so: the life of a call, the log that holds it, and the clients that write it."""
