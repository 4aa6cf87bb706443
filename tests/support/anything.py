"""Anything that may stand in the slots of a call, sensible or not, in any order: for property
tests.
"""

import functools
from collections.abc import Callable
from datetime import timedelta

from hypothesis import strategies as st
from stories import DECISIONS, EDIT, START, approval, question, request

from ayes.ledger.log import RawMessage
from ayes.ops.broker.accounts import permissions
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode, fact_of
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import ORGANISATION, CallRef, Slot, StopRef, ThreadRef, matches

WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_1")
REVIEWERS = ("ana", "ben", "rita")
#: The programs and people that record facts about calls.
ROLES = (
    "gate",
    "model",
    "executor",
    "service",
    "operator",
    "notifier",
    "slack",
    "absence",
    *(f"reviewer-{name}" for name in REVIEWERS),
)

_some = st.sampled_from
_RIGHT, _WRONG = request(WISH).digest, "0" * 64
_EDITED = call_digest(WISH.tool, "v1", EDIT)
_digests = _some([_RIGHT, _RIGHT, _RIGHT, _EDITED, _WRONG])
_attempts = _some([1, 1, 1, 2, 3])


@functools.cache
def may_record(role: str, slot: Slot) -> bool:
    """Whether the broker allows this role to fill the slot."""
    may = permissions(role)
    allowed = any(matches(one, slot.subject) for one in may.publish)
    return allowed and not any(matches(one, slot.subject) for one in may.denied)


def _with(base: e.Event, **changes: object) -> e.Event:
    return type(base)(**{name: getattr(base, name) for name in base.__struct_fields__} | changes)


wishes = st.builds(
    lambda run_by, layout, requester: _with(
        request(WISH), run_by=run_by, layout=layout, requester=requester
    ),
    _some(["client", "payments"]),
    _some([1, 2, 2]),
    _some(["rita", "Rita ", "", "rita@corp.example"]),
)
_questions = st.builds(
    lambda **changes: _with(question(WISH), **changes),
    digest=_digests,
    expires_in_s=_some([None, None, 3.0, 600.0, 1e300]),
    voters=_some([("*",), ("*",), ("ana", "ben"), ("b*",), ()]),
    excluded=_some([(), ("rita",), ("rita@corp.example",), ("a*",)]),
    on_timeout=_some(["deny", "escalate", "stay"]),
    stages=_some([(), (e.Stage(voters=("rita", "ana"), expires_in_s=4.0),)]),
    may_break_glass=_some([(), ("ana",)]),
    may_revoke=_some([(), ("ben",)]),
    may_reconcile=_some([(), ("ben",), ("rita",)]),
    people=_some([{}, {}, {"rita@corp.example": "ben"}]),
    besides=_some([(), (e.Quorum(voters=("rita",)),)]),
    own=_some([(), (), ("rita",)]),
)
_votes = st.builds(
    e.Voted,
    verdict=_some(["approve", "approve", "deny", "answer", "break_glass"]),
    digest=_digests,
    reason=_some(["", "fire"]),
    arguments=_some([None, None, EDIT]),
    on_behalf_of=_some(["", "", "", "ben", "rita"]),
)
_approvals = st.builds(
    lambda edit, **changes: _with(approval(WISH, edit), **changes),
    _some([None, None, EDIT]),
    ground=_some(["people", "people", "policy", "grant", "broken_glass"]),
    may_revoke=_some([(), ("ben",)]),
    excluded=_some([(), ("ana",)]),
    valid_for_s=_some([None, None, None, 3.0, 1e300]),
    mode=_some(["four_eyes", "requester_confirms"]),
) | st.builds(lambda digest: _with(approval(WISH), digest=digest), _digests)
_starts = st.builds(e.ToolStarted, digest=_digests, idempotency_key=st.just("k"))
_endings = _some(
    [
        "denied", "expired", "revoked", "lapsed", "unknown_tool", "withdrawn", "answered",
        "answered_with_error",
    ]
)  # fmt: skip
_results = st.one_of(
    st.builds(e.ToolReturned, output=st.just("done"), attempt=_attempts),
    st.builds(e.ToolFailed, error=st.just("no"), attempt=_attempts),
    st.builds(e.InDoubt, text=st.just("?"), attempt=_attempts),
)
_refusals = st.builds(e.ToolRefused, ending=_endings, text=st.just("it did not run"))
_declined = st.builds(e.Declined, why=_some(["unknown_tool", "digest_mismatch"]))
_revoked = st.builds(
    e.Revoked,
    reviewer=_some(["", "carl"]),
    answer=_some([None, None, "so"]),
    is_error=_some([False, False, True]),
)
_lapsed = st.just(e.Lapsed(after_s=1))
_reconciled = st.builds(
    e.Reconciled, happened=st.booleans(), output=st.just("so"), reviewer=st.just("x")
)
_notified = st.builds(e.Notified, channel=st.just("mail"))
_posted = st.builds(e.Posted, message=st.just("1700000000.000100"))
_commented = st.builds(e.Commented, text=_some(["Why?", "So."]))
_handed = st.builds(e.HandedOver, to=_some(REVIEWERS))
_NEWER = b'{"type":"%s","v":9,"tool":"pay"}'


def _at(place: Slot, *kinds: st.SearchStrategy[e.Event]) -> st.SearchStrategy[tuple[Slot, e.Event]]:
    return st.tuples(st.just(place), st.one_of(*kinds))


def _asked_of(ref: CallRef) -> Callable[[str], Slot]:
    return lambda name: ref.notified(name, "asked")


@functools.cache
def placed(ref: CallRef, *roles: str) -> st.SearchStrategy[tuple[Slot, e.Event]]:
    """One fact in a slot of the call where it may stand; with roles, one that these may record."""
    number = st.integers(1, 3)
    name = _some(REVIEWERS)
    escalated = st.builds(
        e.Escalated, voters=_some([("rita",), ("ana",)]), expires_in_s=_some([None, 2.0])
    )
    slots = {
        ref.requested: _at(ref.requested, wishes),
        ref.gated: _at(ref.gated, _questions),
        ref.vote("ana"): st.tuples(name.map(ref.vote), _votes),
        ref.escalated(1): st.tuples(number.map(ref.escalated), escalated),
        ref.announced: _at(ref.announced, st.just(e.GlassBroken(reviewer="ana", reason="fire"))),
        ref.withdrawn: _at(ref.withdrawn, st.just(e.Withdrawn())),
        ref.decided: _at(ref.decided, _approvals, _some(list(DECISIONS.values()))),
        ref.lapsed: st.tuples(st.just(ref.lapsed), _lapsed),
        ref.revoked_by("ana"): st.tuples(name.map(ref.revoked_by), _revoked),
        ref.claim(1): st.tuples(number.map(ref.claim), st.one_of(_starts, _starts, _declined)),
        ref.client_claim(1): st.tuples(number.map(ref.client_claim), _starts),
        ref.finished: _at(ref.finished, _results, _refusals),
        ref.client_finished: _at(ref.client_finished, _results),
        ref.late(1): st.tuples(number.map(ref.late), _results | _refusals),
        ref.client_late(1): st.tuples(number.map(ref.client_late), _results),
        ref.reconciled_by("ana"): st.tuples(name.map(ref.reconciled_by), _reconciled),
        ref.notified("ana", "asked"): st.tuples(name.map(_asked_of(ref)), _notified),
        ref.room_notified("ops", "asked"): _at(ref.room_notified("ops", "asked"), _notified),
        ref.posted("C1"): st.tuples(_some(["C1", "C2"]).map(ref.posted), _posted),
        ref.comment("ana", 1): st.tuples(st.builds(ref.comment, name, number), _commented),
        ref.handed_by("ana", 1): st.tuples(st.builds(ref.handed_by, name, number), _handed),
    }
    return st.one_of(
        one
        for slot, one in slots.items()
        if not roles or any(may_record(role, slot) for role in roles)
    )


@st.composite
def recorded(draw: st.DrawFn, ref: CallRef, *, foreign: bool = True) -> list[tuple[str, bytes]]:
    """What is recorded about one call, each slot at most once: a story that makes some sense, with
    anything between it.

    Args:
        foreign: bytes that are not a fact, too, and facts of a newer program.
    """
    wish = draw(wishes)
    is_clients = wish.run_by == "client" and wish.layout > 1
    claim, end = (
        (ref.client_claim(1), ref.client_finished) if is_clients else (ref.claim(1), ref.finished)
    )
    spine: list[tuple[Slot, e.Event]] = [(ref.requested, wish)]
    if draw(st.booleans()):
        spine += [
            (ref.gated, draw(st.just(question(WISH)) | _questions)),
            (ref.vote("ana"), draw(_votes)),
        ]
    if draw(_some([True, True, True, False])):
        spine += [(ref.decided, draw(_approvals | _some(list(DECISIONS.values()))))]
        spine += draw(st.lists(_at(claim, _starts), max_size=1))
        spine += draw(
            st.lists(_at(end, _results, *([] if is_clients else [_refusals])), max_size=1)
        )
    for one in draw(st.lists(placed(ref), max_size=7)):
        spine.insert(draw(st.integers(0, len(spine))), one)
    if draw(_some([False, False, False, True])):
        spine = draw(st.permutations(spine))
    told = {slot.subject: encode(event) for slot, event in reversed(spine)}
    found = [
        (subject, told[subject]) for subject in dict.fromkeys(slot.subject for slot, _ in spine)
    ]
    if foreign and draw(_some([False, False, True])):
        index = draw(st.integers(0, len(found) - 1))
        subject, data = found[index]
        kind = data.split(b'"')[3]
        bad = [
            b"", b"{", _NEWER % kind, b'{"type":"%s"}' % kind,
            b'{"type":"Said","role":"user","text":"?"}',
        ]  # fmt: skip
        found[index] = (subject, draw(_some(bad)))
    return found


def raws_of(told: list[tuple[str, bytes]]) -> list[RawMessage]:
    """These facts as the broker stores them, a second apart."""
    return [
        RawMessage(seq, START + timedelta(seconds=seq), subject, data)
        for seq, (subject, data) in enumerate(told, 1)
    ]


def fact(raw: RawMessage) -> Fact:
    return fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data)


_stops = st.builds(
    e.Stopped,
    reason=st.just("why"),
    agents=_some([("*",), ("desk",)]),
    tools=_some([("*",), ("*",), ("refund",), ("x*",)]),
    requesters=_some([("*",), ("*",), ("r*",)]),
    expires_in_s=_some([None, None, 3.0, 1e300]),
)


@st.composite
def stops(draw: st.DrawFn, workspace: str) -> list[tuple[str, bytes]]:
    """A stop of the workspace, another one or all; resumed and ended, mostly in this order."""
    where = draw(_some([workspace, workspace, ORGANISATION, "elsewhere"]))
    ref = StopRef(where, draw(_some(["ana", "call"])), draw(_some(["s1", "s2"])))
    told: list[tuple[Slot, e.Event]] = [(ref.given, draw(_stops))]
    told += draw(st.lists(st.just((ref.resumed_by("ben"), e.Resumed())), max_size=1))
    told += draw(st.lists(st.just((ref.ended, e.StopEnded(resumed_by=("ben",)))), max_size=1))
    if draw(_some([False, False, False, True])):
        told = draw(st.permutations(told))
    return [(slot.subject, encode(event)) for slot, event in told]


@st.composite
def logs(draw: st.DrawFn, ref: ThreadRef, calls: int = 3) -> list[RawMessage]:
    """A log of several concurrent calls with arbitrary facts, and of stops."""
    lanes = [draw(recorded(ref.wish(turn, 0))) for turn in range(1, calls + 1)]
    lanes += draw(
        st.lists(stops(ref.workspace), max_size=2, unique_by=lambda one: one[0][0].split(".")[4])
    )
    told = []
    while lanes := [lane for lane in lanes if lane]:
        told.append(draw(st.sampled_from(lanes)).pop(0))
    return raws_of(told)
