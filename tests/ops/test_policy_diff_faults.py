"""Whether brute force over small policies would notice an error in how they are compared."""

import pytest
from small_policies import judged

from ayes.ops.policy_diff import compare, rules, terms, tools
from ayes.ops.policy_diff import values as v
from ayes.ops.policy_diff.versions import difference
from ayes.schemas.policy import read_policy

_DISJUNCTION, _ORDERED, _EQUAL, _WHOLE = v.disjunction, v.ordered, v.equal, v._whole
_JUDGED, _AFTER, _INIT = rules.judged, tools._after, terms.AnyCall.__init__


def strict(left, right):
    """`||` in which an error beside `true` is one."""
    found = _DISJUNCTION(left, right)
    return v.truth(found.is_true, v.both(left.is_said, right.is_said))


def lenient(sign, left, right):
    """Comparisons that are false, and no error, of different kinds."""
    return v.truth(_ORDERED(sign, left, right).is_true, v.both(left.is_said, right.is_said))


def apart(left, right):
    """Numbers that are equal only to numbers of their kind."""
    said = [
        v.both(left.kinds[one], right.kinds[one], left.values[one] == right.values[one])
        for one in left.kinds
        if one in right.kinds
    ]
    return v.truth(v.either(said), v.both(left.is_said, right.is_said))


def unchecked(sign, one, other):
    """Whole numbers that have a quotient by zero."""
    return _WHOLE(sign, one, other)[0], v.YES


def certain(found, call):
    """Rules that count as evaluated when their condition cannot be."""
    plain = [one._replace(unsaid=v.NO) for one in (rules._judged(rule, call) for rule in found)]
    with pytest.MonkeyPatch.context() as patch:
        each = iter([one for one in plain if not one.rule.shadow])
        patch.setattr(rules, "_judged", lambda rule, call: next(each))
        return _JUDGED(found, call)


def milder(found, call):
    """A rule that allows and beats a stricter one of its priority."""
    raised = (2 * one.priority + (one.then == "allow") for one in found)
    changed = [
        one.model_copy(update={"priority": priority})
        for one, priority in zip(found, raised, strict=True)
    ]
    return _JUDGED(changed, call)


def effective(found, call):
    """Rules without effect that have one."""
    return _JUDGED([one.model_copy(update={"shadow": False}) for one in found], call)


def literal(pattern, places, character):
    """A `?` in a pattern of tools that stands for nothing."""
    return _AFTER(pattern.replace("?", "!"), places, character)


def bounded(self, tool):
    """Calls without a whole number beyond 64 bits."""
    _INIT(self, tool)
    self.facts.append(v.no(self.is_beyond))


#: Where, what, and the fault: those that policies by chance run into.
FREQUENT = [
    (v, "disjunction", strict),
    (compare, "judged", certain),
    (compare, "judged", milder),
    (tools, "_after", literal),
    (rules, "like", lambda text, pattern: v.YES),
]


@pytest.mark.long
@pytest.mark.parametrize(("where", "what", "fault"), FREQUENT)
def test_brute_force_notices_a_planted_fault(where, what, fault, monkeypatch):
    """One of the first hundred pairs is judged wrongly."""
    monkeypatch.setattr(where, what, fault)
    assert any(judged(seed)[1] for seed in range(100))


RULE = '[[rule]]\nname = "{}"\ntools = ["pay"]\nthen = "{}"\n{}\n'


def allowing(when: str) -> str:
    return RULE.format("it", "allow", f"when = '{when}'")


#: Rarer ones, with two policies between which they change the answer.
RARE = [
    (v, "ordered", lenient, allowing("args.a > 1"), allowing("!(args.a <= 1)")),
    (v, "equal", apart, allowing("args.a == 1"), allowing("args.a == 1.0")),
    (v, "_whole", unchecked,
     allowing("args.a != 0 && 1 / args.a == 1"), allowing("1 / args.a == 1")),
    (compare, "judged", effective,
     RULE.format("no", "block", "shadow = true") + allowing("args.a > 1"), allowing("args.a > 2")),
    (terms.AnyCall, "__init__", bounded, allowing("has(args.a) || !has(args.a)"),
     RULE.format("it", "allow", "")),
]  # fmt: skip


@pytest.mark.parametrize(("where", "what", "fault", "before", "after"), RARE)
def test_a_rare_fault_changes_an_answer(where, what, fault, before, after, monkeypatch):
    """It is another one without the fault."""
    old, new = read_policy(before, "old"), read_policy(after, "new")
    right = difference(old, new).answer
    monkeypatch.setattr(where, what, fault)
    assert difference(old, new).answer != right
