"""What people type into forms, as browsers send it, and what they are shown after a problem."""

import secrets
from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Form, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import AfterValidator, BaseModel, Field

from ayes.interfaces.api.queries import Queried
from ayes.interfaces.console.rendering import address
from ayes.schemas.errors import AlreadyFilled, ApprovalsError

#: The longest reason that a form may send.
_MAX_TEXT: Final = 20_000


def with_line_feeds(text: str) -> str:
    """The text as it was typed: forms send each line end as CR LF (HTML, section 4.10.21.4)."""
    return text.replace("\r\n", "\n")


#: A field of a form with what somebody typed.
type Typed = Annotated[str, AfterValidator(with_line_feeds)]
#: The only field of a form: why.
Why = Annotated[str, Form(alias="reason", max_length=_MAX_TEXT)]


def new_name(prefix: str) -> Any:
    """A name that is chosen when the form is shown, so that sending it twice gives one thing."""
    return Field(default_factory=lambda: f"{prefix}-{secrets.token_hex(4)}")


def kept[F: BaseModel](form: F, problem: ApprovalsError | None) -> F:
    """The form to be sent again: by another name if what was sent before has that one."""
    is_taken = isinstance(problem, AlreadyFilled)
    return form.model_copy(update={"name": type(form)().name}) if is_taken else form  # type: ignore[attr-defined]


def search_box(request: Request, searched: Queried, path: str) -> dict[str, Any]:
    """What the box of the list at this path shows: each word of the query with the address of the
    list without it; and the address of the whole list.
    """

    def without(q: str) -> str:
        return f"{path}?{address({**request.query_params, 'q': q, 'after': ''})}"

    return {
        "parts": [(word, without(left)) for word, left in searched.parts],
        "all": without(""),
    }


def patterns(text: str) -> tuple[str, ...]:
    """Names or patterns, separated by commas or blanks."""
    return tuple(text.replace(",", " ").split())


def to(path: str) -> RedirectResponse:
    """To this page, after a form was sent."""
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)


def again[**P](
    shown: Callable[..., Awaitable[Response]],
) -> Callable[[Callable[P, Awaitable[Response]]], Callable[P, Awaitable[Response]]]:
    """Show a page again after a problem, with what was typed.

    Args:
        shown: is given the visit, the form (None: the handler has none) and the problem.
    """

    def decorated(handler: Callable[P, Awaitable[Response]]) -> Callable[P, Awaitable[Response]]:
        @wraps(handler)
        async def answered(*args: P.args, **given: P.kwargs) -> Response:
            try:
                return await handler(*args, **given)
            except ApprovalsError as problem:
                return await shown(given["visit"], given.get("form"), problem)

        return answered

    return decorated
