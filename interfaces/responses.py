from typing import Any

import msgspec
from starlette.responses import JSONResponse


class StructResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)
