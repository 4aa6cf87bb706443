"""Commands that take the whole screen, with Textual (extra `inbox`)."""
