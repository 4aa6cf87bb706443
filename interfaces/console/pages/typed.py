"""What people type into forms, as browsers send it."""

from typing import Annotated

from pydantic import AfterValidator


def with_line_feeds(text: str) -> str:
    """The text as it was typed: forms send each line end as CR LF (HTML, section 4.10.21.4)."""
    return text.replace("\r\n", "\n")


#: A field of a form with what somebody typed.
type Typed = Annotated[str, AfterValidator(with_line_feeds)]
