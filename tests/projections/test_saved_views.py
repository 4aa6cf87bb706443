"""Searches under a name: what a person's list of them becomes."""

import pytest

from ayes.projections.saved_views import MOST, SavedView, with_view
from ayes.schemas.errors import BadInput

LARGE = SavedView(name="Large", q="amount>100", first=True)
MAIL = SavedView(name="mail", q="tool:mail", sort="due", group="requester")


@pytest.mark.parametrize(
    ("new", "before", "becomes"),
    [
        (SavedView(name=" due "), "", [SavedView(name="due"), LARGE, MAIL]),
        (SavedView(name="mail", q="a"), "", [LARGE, SavedView(name="mail", q="a")]),
        (SavedView(name="a", q="b"), "mail", [SavedView(name="a", q="b"), LARGE]),
        (SavedView(name="a"), "none", [SavedView(name="a"), LARGE, MAIL]),
        (SavedView(name="z", first=True), "mail", [SavedView(name="Large", q="amount>100"),
                                                   SavedView(name="z", first=True)]),
    ],
    ids=["new", "replaced", "renamed", "of a name that is gone", "another first page"],
)  # fmt: skip
def test_each_name_is_there_once_and_one_is_first(new, before, becomes):
    assert list(with_view((LARGE, MAIL), new, before)) == becomes


@pytest.mark.parametrize(
    ("new", "before", "said"),
    [
        (SavedView(name="mail"), "Large", "you have a view 'mail' already"),
        (SavedView(name=" "), "", "a name of 1 to 80 characters"),
        (SavedView(name="x" * 81), "", "a name of 1 to 80 characters"),
        (SavedView(name="x", q="due:soon"), "", "due is compared with a duration"),
        (SavedView(name="x", q="by:ana"), "", "by:ana does not select pending calls"),
        (SavedView(name="x", q="a" * 1001), "", "a query may have 1,000 characters"),
        (SavedView(name="x", sort="amount"), "", "sort='amount' is not an order"),
        (SavedView(name="x", sort="field:" + "a" * 200), "", "sort may have 200 characters"),
        (SavedView(name="x", group="amount"), "", "group='amount' is not one of"),
        (SavedView(name="x", q="workspace:bank", workspace="shop"), "",
         "workspace:bank does not select calls of shop alone"),
    ],
)  # fmt: skip
def test_what_nobody_could_apply_is_not_saved(new, before, said):
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        with_view((LARGE, MAIL), new, before)


def test_there_are_no_more_than_fifty():
    """One of them can still be replaced, and renamed."""
    views = ()
    for number in range(MOST):
        views = with_view(views, SavedView(name=f"{number:02}"))
    with pytest.raises(BadInput, match="50 views already"):
        with_view(views, SavedView(name="more"))
    assert len(with_view(views, SavedView(name="more"), before="07")) == MOST
    assert len(with_view(views, SavedView(name="07", q="a"))) == MOST


def test_a_view_for_a_workspace_has_its_calls_alone():
    """Others list their calls wherever the reader is."""
    shared = SavedView(name="x", q="a", workspace="shop")
    assert str(shared.query) == "a workspace:shop"
    assert shared.listing("bank")["workspace"] == "shop"
    assert MAIL.listing("bank") == {
        "q": "tool:mail", "sort": "due", "group": "requester", "workspace": "bank",
    }  # fmt: skip
