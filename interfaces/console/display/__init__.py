"""What agents sent, as structures that templates render: complete, in order, nothing hidden.

Pure functions from text to values. Nothing here makes HTML; templates escape every text.
"""
