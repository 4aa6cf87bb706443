"""Reading and printing at the command line."""
