"""What pages make of a call beside its values: the form of an edit, the people, the timeline.

Pure functions, as those of `projections/display`; templates escape every text.
"""
