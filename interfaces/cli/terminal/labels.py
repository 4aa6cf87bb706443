"""Labels on the command line: `--label channel=chat`, which may be repeated."""

from collections.abc import Sequence

from ayes.schemas.errors import BadInput


def read_labels(given: Sequence[str]) -> dict[str, str]:
    """The labels by name.

    Raises:
        BadInput: one is not of the form NAME=VALUE, or a name is given twice.
    """
    labels: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise BadInput(f"--label {one!r} is not of the form NAME=VALUE.")
        if name in labels:
            raise BadInput(f"--label {name!r} is given twice.")
        labels[name] = value
    return labels
