"""The tables that analysts query, and the saved queries."""
