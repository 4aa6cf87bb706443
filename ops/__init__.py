"""What people run: the command line, the embedded server, its accounts."""
