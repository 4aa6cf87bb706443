"""What agents sent, as structures that pages and terminals render: complete, in order, nothing
hidden.

Pure functions from text to values. Whatever renders them escapes every text.
"""
