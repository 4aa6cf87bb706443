"""Rendering templates. Nothing from an agent is ever HTML: every value is escaped."""

from pathlib import Path
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates

from ayes.ops.console.identity import Visitor

_templates: Final = Jinja2Templates(Path(__file__).parents[1] / "templates")


def page(request: Request, name: str, visitor: Visitor, **values: Any) -> HTMLResponse:
    return _templates.TemplateResponse(request, name, {"visitor": visitor, **values})
