"""What a change of a policy opens: the smallest call that the new one lets through and the old one
does not, or a proof that there is none.
"""
