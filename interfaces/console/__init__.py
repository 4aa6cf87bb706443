"""The web console and the HTTP API: one application, two faces of the same functions."""
