"""The pages: each renders what functions of the API return, and imports nothing of the ledger.

To add one: a module here with a `router`, its template in `templates/`, and, if the navigation is
to lead to it, a line of `PLACES` in `rendering.py`.
"""
