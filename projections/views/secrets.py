"""What people see of arguments: all but the values that their tool declares as secret.

Whatever shows arguments outside takes them through `Secrets`, after the facts were judged: digests,
votes and what runs are about the whole arguments. docs/secrets.md says who sees them whole.
"""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.projections.display import raw_json
from ayes.projections.thread import Thread, Turn
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.redaction import REDACTED, is_index
from ayes.schemas.sealed import is_token, names_of

#: Workspace, name and version of a tool.
type Declaration = tuple[str, str, str]
#: In the place of a version: the tool of a wish or a grant, which have none.
NEWEST: Final = "newest"
_REDACTED: Final = raw_json.written(REDACTED)


class Secrets(Struct, frozen=True):
    """The places that are secret, by declaration.

    The whole is hidden if its declaration is not here or cannot be read (None), or if the arguments
    cannot be read or are no object, as those of all tools are, while something in them is secret.
    """

    #: JSON pointers as of `ToolSpec.secret`. None: nothing is hidden.
    places: Mapping[Declaration, Collection[str] | None] | None

    @property
    def hides(self) -> bool:
        """Whether any of these tools has secret places, as far as that is known."""
        return self.places is not None and any(
            found is None or found for found in self.places.values()
        )

    def hides_in(self, call: Call) -> bool:
        """Whether anything of this call is not shown, or may be what nobody here can read."""
        return self.hides and any(
            isinstance(fact.event, e.Carried)
            or self.event(fact.event, call.ref.workspace, call.wish) != fact.event
            for fact in call.facts
        )

    def arguments(self, of: Declaration, raw: str) -> str:
        """Arguments with `REDACTED` in secret places; every other value keeps its bytes."""
        if self.places is None:
            return raw
        if (places := self.places.get(of)) is not None and not places:
            return raw
        whole = shown = raw.strip()
        if places is None or not raw_json.is_readable(raw) or raw_json.kind_of(whole) != "object":
            return _REDACTED
        for pointer in places:
            shown = _without(shown, names_of(pointer))
        return raw if shown == whole else shown

    def event[E](self, event: E, workspace: str, wish: e.ToolRequested | None = None) -> E:
        """The event with its arguments as they are shown.

        Args:
            wish: the request, if the event is about a call.
        """
        asked = event if isinstance(event, e.ToolRequested) else wish
        of = (workspace, asked.tool, asked.tool_version) if asked else ("", "", "")
        match event:
            case (
                e.ToolRequested(arguments=str(raw))
                | e.Voted(arguments=str(raw))
                | e.Approved(arguments=str(raw))
            ):
                return replace(event, arguments=self.arguments(of, raw))
            case e.Granted(arguments=str(raw)):
                newest = (workspace, event.tool, NEWEST)
                return replace(event, arguments=self.arguments(newest, raw))
            case e.ModelReplied(parts=parts):
                shown = tuple(self._part(part, workspace) for part in parts)
                return replace(event, parts=shown)
            case _:
                return event

    def _part(self, part: e.Part, workspace: str) -> e.Part:
        if not isinstance(part, e.Wish):
            return part
        shown = self.arguments((workspace, part.tool, NEWEST), part.arguments)
        return replace(part, arguments=shown)

    def call(self, call: Call) -> Call:
        """The call as it is shown, for the texts made of it. Digests and what counts are those of
        the call itself.
        """
        if self.places is None or call.requested is None:
            return call

        def shown(fact: Fact | None) -> Fact | None:
            return fact and replace(
                fact, event=self.event(fact.event, call.ref.workspace, call.wish)
            )

        return replace(call, requested=shown(call.requested), decided=shown(call.decided))

    def thread(self, thread: Thread) -> Thread:
        """The conversation as it is shown, likewise."""

        def shown(turn: Turn) -> Turn:
            fact = turn.replied
            event = fact and self.event(fact.event, thread.ref.workspace)
            return replace(turn, replied=fact and replace(fact, event=event))

        calls = {name: self.call(call) for name, call in thread.calls.items()}
        return replace(
            thread, calls=calls, turns={one: shown(turn) for one, turn in thread.turns.items()}
        )


#: For whoever requests or runs calls, and for what is signed.
WHOLE: Final = Secrets(None)


def declaration(call: Call) -> Declaration:
    return call.ref.workspace, call.wish.tool, call.wish.tool_version


def _without(raw: str, path: tuple[str, ...], *, is_named: bool = True) -> str:
    """The raw value without what is at a path, as of `redaction.without`; a sealed value stays, as
    pages hide it anyway.
    """
    kind = raw_json.kind_of(raw)
    if not path or (is_named and _is_in_the_way(kind, path[0])):
        sealed = kind == "string" and is_token(raw_json.string(raw))
        return raw if sealed else _REDACTED
    first, *rest = path
    inner = raw_json.children(raw)
    hit = {
        name: _without(value, tuple(rest), is_named=first != "*")
        for name, value in inner.items()
        if first in ("*", name)
    }
    is_other = any(inner[name] != value for name, value in hit.items())
    return raw_json.made(kind, inner | hit) if is_other else raw


def _is_in_the_way(kind: raw_json.Kind, key: str) -> bool:
    return kind in ("string", "number") or (kind == "array" and not is_index(key))
