"""Views that have fields of what they show."""

from typing import Any

from msgspec import Struct


def copied[T: Struct](kind: type[T], of: object, **other: Any) -> T:
    """A view with the fields of this object that it has by the same name, except the other ones."""
    same = {name: getattr(of, name) for name in kind.__struct_fields__ if name not in other}
    return kind(**same, **other)
