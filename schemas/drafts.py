"""The drafts of JSON Schema that a tool's schema may be written in.

A schema is checked by the rules of its own draft, with two exceptions that hold in all: `format`,
`contentEncoding` and `contentMediaType` only describe (2020-12, as most validators do), and a word
that the draft does not know but another one does is refused, since the draft would ignore it.
"""

from typing import Any, Final, NamedTuple

import jsonschema_rs

_WORDS_OF_2020: Final = frozenset({"prefixItems", "$dynamicRef", "$dynamicAnchor"})
_WORDS_OF_2019: Final = frozenset(
    {
        *("$recursiveRef", "$recursiveAnchor", "$anchor", "dependentSchemas", "dependentRequired"),
        *("unevaluatedItems", "unevaluatedProperties", "minContains", "maxContains"),
    }
)
_WORDS_OF_7: Final = frozenset({"if", "then", "else"})
_WORDS_OF_6: Final = frozenset({"const", "contains", "propertyNames"})


class Draft(NamedTuple):
    name: str
    validator: Any
    #: Words of other drafts, which it would ignore.
    unread: frozenset[str]
    #: The word by which a schema names itself.
    id_word: str = "$id"


_SINCE_7: Final = _WORDS_OF_2020 | _WORDS_OF_2019
_2020: Final = Draft(
    "2020-12",
    jsonschema_rs.Draft202012Validator,
    frozenset({"$recursiveRef", "$recursiveAnchor"}),
)
_7: Final = Draft("draft-07", jsonschema_rs.Draft7Validator, _SINCE_7)
_4: Final = Draft(
    "draft-04", jsonschema_rs.Draft4Validator, _SINCE_7 | _WORDS_OF_7 | _WORDS_OF_6, "id"
)
#: By `$schema`, without its scheme and a `#` at its end.
_DRAFTS: Final = {
    "json-schema.org/draft/2020-12/schema": _2020,
    "json-schema.org/draft/2019-09/schema": Draft(
        "2019-09", jsonschema_rs.Draft201909Validator, _WORDS_OF_2020
    ),
    "json-schema.org/draft-07/schema": _7,
    "json-schema.org/draft-06/schema": Draft(
        "draft-06", jsonschema_rs.Draft6Validator, _SINCE_7 | _WORDS_OF_7
    ),
    "json-schema.org/draft-04/schema": _4,
}


def drafts_of(schema: dict[str, Any]) -> tuple[Draft, ...]:
    """The draft of a schema by its `$schema`; without one, those that it may be, in their order.

    Raises:
        ValueError: it is another dialect.
    """
    if (named := schema.get("$schema")) is None:
        # 2020-12, says the Model Context Protocol; but many tools are older than that sentence.
        return _2020, _7, _4
    if isinstance(named, str) and (found := draft_named(named)) is not None:
        return (found,)
    raise ValueError(
        f"the $schema is {named}, which is not one of the drafts {', '.join(NAMES)} of JSON Schema."
    )


def draft_named(uri: str) -> Draft | None:
    return _DRAFTS.get(uri.partition("://")[2].removesuffix("#"))


NAMES: Final = tuple(one.name for one in _DRAFTS.values())
