"""Writing, querying and reporting from the lake."""
