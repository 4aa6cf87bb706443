"""Arguments without what their tool declares as secret.

`tests/projections/test_secrets.py` compares what notices hide with what pages hide.
"""

import pytest

from ayes.schemas.redaction import REDACTED, is_left_out, without
from ayes.schemas.sealed import SEALED

TOKEN = f"ayes:sealed:1:{'0' * 16}:{'A' * 80}"


@pytest.mark.parametrize(
    ("value", "place", "hidden"),
    [
        ({"card": {"number": 4111}}, "/card/number", {"card": {"number": REDACTED}}),
        ({"card": TOKEN}, "/card", {"card": SEALED}),
        ({"card": "4111"}, "/card/number", {"card": REDACTED}),
        ({"card": 4111}, "/card/number", {"card": REDACTED}),
        ({"card": ["4111"]}, "/card/number", {"card": REDACTED}),
        ({"card": ["4111"]}, "/card/\u0663", {"card": REDACTED}),  # a digit, but no index
        ({"cards": ["4111"]}, "/cards/*/number", {"cards": ["4111"]}),
        ({"cards": ["4111"]}, "/cards/0/number", {"cards": [REDACTED]}),
        ({"card": None, "note": "x"}, "/card/number", {"card": None, "note": "x"}),
    ],
)
def test_what_stands_in_the_place_of_what_is_around_a_secret_is_hidden(value, place, hidden):
    """A model may put the value there by mistake. Behind `*` are values of all kinds."""
    assert without(value, [place]) == hidden
    assert is_left_out(hidden, [place]) == (hidden != value and hidden != {"card": SEALED})
    assert not is_left_out(value, [place])
