"""What everybody outside sees, in words."""

import pytest

from ayes.projections.views.call import quorum_words
from ayes.schemas import events as e


@pytest.mark.parametrize(
    ("voters", "needed", "words"),
    [
        ("*", 1, "anybody"),
        ("*", 2, "any 2 people"),
        ("ana", 1, "ana"),
        ("ana ben", 1, "one of ana and ben"),
        ("ana ben", 2, "ana and ben"),
        ("ana ben cy", 2, "2 of ana, ben and cy"),
        ("ops-*", 1, "one of ops-*"),
        ("group:Board", 1, "one of group:Board"),
        ("", 1, "one more, and nobody is left to ask"),
    ],
)
def test_a_quorum_is_said_as_a_person_would(voters, needed, words):
    assert quorum_words(e.Quorum(tuple(voters.split()), needed)) == words
