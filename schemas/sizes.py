"""Sizes, as people read them."""


def size(number: int) -> str:
    """Such as `1.4 MB`."""
    for unit, one in (("GB", 1e9), ("MB", 1e6)):
        if number >= one:
            return f"{number / one:,.1f} {unit}"
    return f"{number / 1e3:,.0f} kB"
