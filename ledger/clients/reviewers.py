"""The ledger for a reviewer: vote, comment, hand over, grant, delegate, revoke, reconcile.

    async with Ledger.connect(role="reviewer-ana") as ledger:
        await ledger.reviewer("ana").approve("shop/order-17/refund-1", reason="within the rules")

A reviewer's name is part of each slot that they fill, and the broker lets only that person's
credentials fill it. An event that cannot count is refused here before it is recorded; the gate
applies the same rules when it counts the votes (`votes.py`).
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, get_args

import msgspec

from ayes.ledger import tracing
from ayes.ledger.call import Call
from ayes.ledger.clients.client import (
    NEXT,
    LedgerClient,
    as_of_the_leader,
    call_ref,
    same_content,
)
from ayes.ledger.descriptions import describe
from ayes.ledger.judging.grants import (
    Delegation,
    Grant,
    bad_delegation,
    bad_grant,
    delegated,
    delegations_of,
    grants_of,
)
from ayes.ledger.judging.policies import Policies, is_possible, of_edit
from ayes.ledger.judging.stopping import may, resumes_needed
from ayes.ledger.judging.unjudged import unjudged_grant
from ayes.ledger.judging.votes import is_edit
from ayes.ledger.keys import PersonKey, Signatures
from ayes.ledger.log import EventLog
from ayes.ledger.objections import VOID_VOTE, asks_groups, flaw_of_signature, unused
from ayes.ledger.passkeys import Passkey
from ayes.ledger.people import People
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import (
    MAX_LIFE_S,
    MAX_SKEW_S,
    Bound,
    delegation_digest,
    grant_digest,
    signed,
    vote_digest,
)
from ayes.ledger.stops import Stop, known_stop, stops_of
from ayes.ledger.validity import evolve, may_vote
from ayes.schemas import events as e
from ayes.schemas import ids
from ayes.schemas.codec import Fact
from ayes.schemas.content import words
from ayes.schemas.errors import (
    AlreadyFilled,
    BadArguments,
    BadInput,
    NotAllowed,
    NotOpen,
    Refused,
)
from ayes.schemas.limits import MAX_INTERVAL_S, MAX_REASON, MAX_TEXT
from ayes.schemas.limits import check as check_size
from ayes.schemas.quorums import is_group
from ayes.schemas.slots import (
    MOST_SAID,
    ORGANISATION,
    REMOVALS,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    StopRef,
    account_slot,
)
from ayes.schemas.tools import Tool

_VERDICTS: Final[tuple[e.Verdict, ...]] = get_args(e.Verdict.__value__)


class Ballot(msgspec.Struct, frozen=True):
    """What a reviewer says about a pending call."""

    verdict: e.Verdict
    #: With `deny` the model reads it; with `break_glass` it is required.
    reason: str = ""
    #: With `approve`: run it with these instead (raw JSON text).
    arguments: str | None = None
    #: With `answer`: the text that the model reads in place of the tool's output.
    answer: str = ""
    #: With `answer`: the model reads it as the tool's error.
    is_error: bool = False
    #: The person in whose place, by that person's delegation. Found by itself for a reviewer who
    #: was not asked.
    on_behalf_of: str = ""
    #: With `deny` and `answer`: the model is not asked again before a user says something.
    halt: bool = False
    #: The digest that the reviewer was shown; the vote counts for that one only. Empty: any.
    digest: str = ""
    #: With `approve` and `break_glass`: the tool's name as the reviewer typed it, where a rule has
    #: `confirm = "typed"`.
    typed: str = ""
    #: Made elsewhere, with a key of the reviewer's (`to_sign`). Empty: it is signed here, if their
    #: key is here.
    signature: str = ""

    @property
    def vote(self) -> e.Voted:
        """The fact."""
        fields = msgspec.structs.asdict(self)
        del fields["typed"]
        return e.Voted(**fields)


class ToSign(NamedTuple):
    """A vote that is signed elsewhere."""

    call: Call
    vote: e.Voted
    bound: Bound
    #: The end of the signature, in seconds since 1970.
    until: int
    #: What is signed.
    digest: bytes
    #: With one of these.
    keys: tuple[PersonKey, ...]


class Reviewer:
    """The methods of one person. `Ledger.reviewer` makes it."""

    def __init__(self, ledger: LedgerClient, name: str) -> None:
        self._ledger = ledger
        self.name = name

    @property
    def log(self) -> EventLog:
        return self._ledger.log

    # ------------------------------------------------------------------------------------ votes

    async def approve(
        self, call: CallRef | str, *, reason: str = "", arguments: str | None = None
    ) -> Call:
        """Vote to let the call run; with `arguments` (raw JSON text), with these instead."""
        return await self.vote(call, Ballot("approve", reason, arguments))

    async def deny(self, call: CallRef | str, *, reason: str = "") -> Call:
        """Vote against the call; the model reads the reason."""
        return await self.vote(call, Ballot("deny", reason))

    @as_of_the_leader
    async def vote(self, call: CallRef | str, ballot: Ballot) -> Call:
        """Vote on a pending call; `approve` and `deny` are shorter.

        Raises:
            BadInput: there is no such verdict; it does not use one of the ballot's fields; or the
                rule wants the tool's name typed, and it is not.
            TooLarge: reason, arguments or answer are over their limit (`ayes.schemas.limits`).
            UnknownCall, AlreadyDecided, DeadlinePassed, NotAllowed, NotOpen: see
                `validity.refusal`.
            NotAllowed: nobody delegated that vote to this reviewer; the policies in force block the
                call as edited; the editor does not count, and nobody else can agree to the edit; or
                signed votes are wanted, and no key is here, or its signature does not count.
            BadArguments: the edit breaks the tool's schema.
            AlreadyFilled: this reviewer has voted before.
        """
        ref = call_ref(call)
        known, voted = await self._checked(ref, ballot)
        if ballot.signature:
            await self._check_signature(known, voted)
        else:
            if self._lacks_key(known, voted):
                raise self._unsigned(known)
            voted = await self._signed(known, voted)
        with tracing.voting(known, ballot.verdict):
            return await self._ledger.fill(ref, ref.vote(self.name), tracing.about(known, voted))

    @as_of_the_leader
    async def to_sign(self, call: CallRef | str, ballot: Ballot) -> ToSign | None:
        """What a passkey of this reviewer signs for a vote; None if it needs no signature, or they
        have no passkey that counts on this call. The end is by the broker's clock.

        Raises:
            Refused, BadInput: as of `vote`.
        """
        known, voted = await self._checked(call_ref(call), ballot)
        keys = await self.passkeys(known)
        if voted.verdict == "deny" or not keys or not self._ledger.wants_signed(known):
            return None
        log = keys[0].public.name.partition("/")[2]
        now, bound = await asyncio.gather(self._ledger.log.clock(), self._ledger.bound(known, log))
        until = int(now.timestamp()) + MAX_LIFE_S - MAX_SKEW_S
        digest = vote_digest(bound, known.ref, known.wish, self.name, voted, until)
        return ToSign(known, voted, bound, until, digest, keys)

    async def passkeys(self, call: Call) -> tuple[PersonKey, ...]:
        """This reviewer's passkeys with which a vote on a pending call counts, as far as that is
        judged here.
        """
        if self._ledger.trust is None or call.gated is None:
            return ()
        keys = await self._ledger.keys_of(self._ledger.trust)
        theirs = (one for one in keys.of(self.name) if isinstance(one.public, Passkey))
        return tuple(one for one in theirs if one.counts(call.gated))

    async def _checked(self, ref: CallRef, ballot: Ballot) -> tuple[Call, e.Voted]:
        """The call, and the vote as it is to be recorded but for its signature."""
        if ballot.verdict not in _VERDICTS:
            verdicts = ", ".join(_VERDICTS)
            raise BadInput(
                f"{ballot.verdict!r} is not a valid verdict. The verdicts are: {verdicts}."
            )
        if problem := unused(ballot.vote):
            raise BadInput(f"{problem}. Nothing was recorded.")
        check_size("the reason", ballot.reason, MAX_REASON)
        check_size("the answer", ballot.answer, MAX_TEXT)
        check_size("the edited arguments", ballot.arguments or "", MAX_TEXT)
        known = await self._ledger.known_call(ref)
        asked = known.approval_request.digest if known.approval_request else ""
        voted = await self.check_vote(known, msgspec.structs.replace(ballot.vote, digest=asked))
        if ballot.digest not in ("", voted.digest):
            raise NotOpen(
                f"{ref} waits with the digest {voted.digest}, not {ballot.digest}. Nothing was "
                f"recorded. Look at what waits: ayes show {ref}"
            )
        _check_typed(known, ballot)
        if ballot.arguments is not None:
            await self._check_edit(known, voted, ballot.arguments)
        return known, voted

    async def check_vote(self, call: Call, vote: e.Voted, *, forgives: bool = False) -> e.Voted:
        """Refuse a vote that could not count; its edit aside. Returns it as it is to be recorded.

        Args:
            forgives: whether groups that were read long ago count, since they are read anew before
                the vote.

        Raises:
            Refused: as of `vote`.
        """
        if asks_groups(call):
            given = await self._ledger.delegations(call.ref.workspace)
            givers = [one.ref.giver for one in given if one.delegated.to == self.name]
            call, _ = await self._ledger.with_given(call, self.name, *givers)
            people = msgspec.structs.replace(call.people, forgives=forgives)
            call = msgspec.structs.replace(call, people=people)
        principal = vote.on_behalf_of or await self._principal(call, vote)
        voted = msgspec.structs.replace(vote, on_behalf_of=principal)
        await self._ledger.check(call, call.ref.vote(self.name), voted)
        if vote.on_behalf_of:
            await self._check_principal(call, principal)
        if vote.verdict != "break_glass":
            await self._check_substitutes(call)
        if self._lacks_key(call, vote) and not await self.passkeys(call):
            raise self._unsigned(call)
        return voted

    def _lacks_key(self, call: Call, vote: e.Voted) -> bool:
        """Whether a vote would not count as it can be signed here."""
        is_free = vote.verdict == "deny" or bool(vote.signature) or self._ledger.signer is not None
        return not is_free and self._ledger.wants_signed(call)

    def _unsigned(self, call: Call) -> NotAllowed:
        return NotAllowed(
            f"only signed votes count on {call.ref}, and {self.name}'s key is not here. Vote "
            f"where it is: ayes approve {call.ref} --as {self.name}. (`ayes key new` makes a "
            "key.) A denial needs no signature. Nothing was recorded."
        )

    async def _check_signature(self, call: Call, vote: e.Voted) -> None:
        """Refuse a vote whose signature would not count, as far as that is judged here."""
        trust = self._ledger.trust
        if trust is None:
            return
        keys, bound, now = await asyncio.gather(
            self._ledger.keys_of(trust),
            self._ledger.bound(call, trust.log),
            self._ledger.log.clock(),
        )
        known = msgspec.structs.replace(call, signatures=Signatures(bound, keys))
        if (flaw := flaw_of_signature(known, vote, self.name, now, NEXT)) is not None:
            raise NotAllowed(
                f"this signature of {self.name}'s does not count on {call.ref}: "
                f"{VOID_VOTE[flaw]}, or its minutes are over. Sign it again. Nothing was recorded."
            )

    async def _signed(self, call: Call, vote: e.Voted) -> e.Voted:
        """The vote, signed if a key is here.

        Raises:
            BadInput: the key is another person's, or the clock here is wrong.
        """
        if (key := self._own_key()) is None:
            return vote
        log = key.public.name.partition("/")[2]
        until, bound = await self._signed_until(), await self._ledger.bound(call, log)
        digest = vote_digest(bound, call.ref, call.wish, self.name, vote, until)
        return msgspec.structs.replace(vote, signature=signed(key, digest, until))

    async def _signed_until(self) -> int:
        """The end of a signature that is made now.

        Raises:
            BadInput: the clock here is wrong.
        """
        if abs(off := await self._ledger.ahead_s()) > MAX_SKEW_S:
            raise BadInput(
                f"the clock here is {off:+,.0f} s off the broker's, and a signature is valid for "
                "minutes. Set the clock. Nothing was recorded."
            )
        return int(self._ledger.now().timestamp()) + MAX_LIFE_S - MAX_SKEW_S

    def _own_key(self) -> SignerKey | None:
        """The key that signs for this reviewer; None: none is here.

        Raises:
            BadInput: it is another person's.
        """
        key = self._ledger.signer
        if key is not None and (person := key.public.name.partition("/")[0]) != self.name:
            raise BadInput(f"the key is {person}'s, and not {self.name}'s. Nothing was recorded.")
        return key

    async def _principal(self, call: Call, vote: e.Voted) -> str:
        """For a reviewer who was not asked: a person who was, and delegated to them; else empty."""
        asked = call.approval_request
        now = self._ledger.now()
        if vote.verdict == "break_glass" or asked is None or may_vote(call, vote, self.name, now):
            return ""
        for one in await self._ledger.delegations(call.ref.workspace):
            behalf = msgspec.structs.replace(vote, on_behalf_of=one.ref.giver)
            if one.holds(self.name, call.wish.tool, now) and may_vote(call, behalf, self.name, now):
                return one.ref.giver
        return ""

    async def _check_principal(self, call: Call, principal: str) -> None:
        """Refuse a vote in the place of a person who did not delegate it to this reviewer."""
        now = self._ledger.now()
        if not any(
            one.ref.giver == principal and one.holds(self.name, call.wish.tool, now)
            for one in await self._ledger.delegations(call.ref.workspace)
        ):
            raise NotAllowed(
                f"{principal} gave {self.name} no vote on {call.wish.tool} that holds now. "
                "Nothing was recorded."
            )

    async def _check_substitutes(self, call: Call) -> None:
        """Refuse the vote of a person in whose place another has voted already."""
        instead = [
            vote
            for vote in call.votes
            if isinstance(vote.event, e.Voted) and vote.event.on_behalf_of == self.name
        ]
        if not instead:
            return
        given = await self._ledger.delegations(call.ref.workspace)
        for vote in instead:
            if delegated(given, call, vote):
                raise NotAllowed(
                    f"{vote.slot.tail[3]} has voted on {call.ref} in {self.name}'s place: "
                    f"{describe(vote)}. Nothing was recorded."
                )

    async def _check_edit(self, call: Call, voted: e.Voted, arguments: str) -> None:
        """Refuse arguments that break the tool's schema or with which the call could never run."""
        ref, wish = call.ref, call.wish
        tool = await self._ledger.tool(ref.workspace, wish.tool, wish.tool_version)
        if problem := tool.problems(arguments) or tool.seal_problem(wish.arguments, arguments):
            raise BadArguments(problem)
        known = await self._ledger.with_origin(call)
        policies = await self._ledger.policies(ref.workspace)
        known = await self._ledger.with_class(known, policies, tool)
        more = of_edit(policies, tool, known, arguments)
        assert known.approval_request
        if more is None:
            own = known.approval_request.mode != "four_eyes"
            blocks = "blocks, or takes four eyes for," if own else "blocks"
            raise NotAllowed(
                f"{ref} cannot run so: the policy in force {blocks} {wish.tool} with these "
                "arguments. Nothing was recorded."
            )
        if not is_possible(known, more):
            raise NotAllowed(
                f"{ref} cannot run so: with these arguments the policy asks others than those who "
                "were asked. Nothing was recorded. Deny it, so that it is requested anew."
            )
        vote = Fact(NEXT, self._ledger.now(), ref.vote(self.name), voted)
        if known.approval_request.editor_counts or not is_edit(known, vote):
            return
        after = await self._ledger.tally(evolve(known, vote))
        if isinstance(after.verdict, e.Denied):
            raise NotAllowed(
                f"{ref} cannot run so: the person who edits does not count, and too few others "
                "could agree. Nothing was recorded. Deny it and say what it should be, so that it "
                "is requested anew."
            )

    # ------------------------------------------------------------------------- among colleagues

    async def comment(self, call: CallRef | str, text: str) -> Call:
        """Say something about a call, in any status. It counts for nothing, and no model reads it.

        Repeating the last comment on the call is safe.

        Raises:
            BadInput: the comment is empty.
            TooLarge: it is over the limit of a reason (`ayes.schemas.limits`).
            UnknownCall: it was never requested.
            AlreadyFilled: the reviewer has said as much on it as one person may (`MOST_SAID`).
        """
        check_size("the comment", text, MAX_REASON)
        if not text.strip():
            raise BadInput("a comment needs a text. Nothing was recorded.")
        known = await self._ledger.known_call(call_ref(call))
        return await self._say(known, known.comments, known.ref.comment, e.Commented(text=text))

    @as_of_the_leader
    async def hand_over(self, call: CallRef | str, to: str, *, reason: str = "") -> Call:
        """Ask a colleague to decide about a pending call. Both go on to have their votes.

        Repeating it is safe, unless the call was handed over again since.

        Raises:
            BadId: `to` is not a valid name of a person.
            BadInput: it is the reviewer's own.
            TooLarge: the reason is over its limit (`ayes.schemas.limits`).
            UnknownCall, AlreadyDecided, DeadlinePassed, NotOpen, AlreadyFilled: the reviewer could
                not vote on it now.
            NotAllowed: the same; or the colleague could not.
            AlreadyFilled: the reviewer has handed it over as often as one person may (`MOST_SAID`).
        """
        ids.token("reviewer", to)
        check_size("the reason", reason, MAX_REASON)
        if to == self.name:
            raise BadInput(f"{to} has {call} already. Nothing was recorded.")
        known = await self._ledger.known_call(call_ref(call))
        await self.check_may_vote(known)
        try:
            await Reviewer(self._ledger, to).check_may_vote(known)
        except Refused as problem:
            asking, voters = known.approval_request, ", ".join(known.voters())
            assert asking, "the reviewer's own vote was checked before"
            raise NotAllowed(
                f"{known.ref} cannot be handed to {to}, who could not vote on it now: rule "
                f"{asking.rule!r} asks {voters}."
            ) from problem
        handed = e.HandedOver(to=to, reason=reason)
        return await self._say(known, known.handed, known.ref.handed_by, handed)

    async def check_may_vote(self, call: Call) -> None:
        """Refuse a person who could not vote on it now, in whatever words; errors as of `vote`."""
        digest = call.approval_request.digest if call.approval_request else ""
        await self.check_vote(call, e.Voted(verdict="deny", digest=digest), forgives=True)

    async def _say(
        self, call: Call, said: Sequence[Fact], slot: Callable[[str, int], Slot], event: e.Event
    ) -> Call:
        """Record an event in the next slot of its kind, unless this reviewer said the same last."""
        last = said[-1] if said else None
        if last and last.slot.tail[3] == self.name and same_content(last.event, event):
            return call
        event = tracing.about(call, event)
        number = 1 + sum(one.slot.tail[3] == self.name for one in said)
        while not (place := slot(self.name, number)).is_surplus:
            first = await self._ledger.try_append(place, event)
            if first is None or same_content(first.event, event):
                return await self._ledger.call(call.ref, must_include=place)
            number += 1
        most = f"{MOST_SAID['comment']} comments, and {MOST_SAID['handed']} handovers"
        raise AlreadyFilled(
            f"{self.name} has said as much about {call.ref} as one person may ({most}). "
            "Nothing was recorded."
        )

    # ------------------------------------------------------------------- approvals and their end

    @as_of_the_leader
    async def revoke(
        self,
        call: CallRef | str,
        *,
        reason: str = "",
        answer: str | None = None,
        is_error: bool = False,
        halt: bool = False,
    ) -> Call:
        """Take an approval back before the tool runs.

        Args:
            answer: the text that the model reads in place of the tool's output. Without one it
                reads that the approval was taken back, and the reason.
            is_error: the model reads the answer as the tool's error.
            halt: the model is not asked again before a user says something.

        Raises:
            AlreadyFilled, NotOpen: it has started, or was never approved.
            NotAllowed: this person may not, or asked for the call.
            TooLarge: reason or answer are over their limit (`ayes.schemas.limits`).
            BadInput: `is_error` without an answer.
        """
        ref = call_ref(call)
        if is_error and answer is None:
            raise BadInput("is_error is for an answer only, and there is none. Pass answer, too.")
        check_size("the reason", reason, MAX_REASON)
        check_size("the answer", answer or "", MAX_TEXT)
        revoked = e.Revoked(
            reason=reason, reviewer=self.name, answer=answer, is_error=is_error, halt=halt
        )
        return await self._settle(ref, ref.revoked_by(self.name), revoked)

    @as_of_the_leader
    async def reconcile(self, call: CallRef | str, *, happened: bool, output: e.Content) -> Call:
        """Record whether a call in doubt took effect.

        Args:
            output: the result, for the model: a text, or the parts of a late result.

        Raises:
            NotOpen: it is not in doubt.
            NotAllowed: this person may not, or asked for the call.
            AlreadyFilled: somebody else was first.
            TooLarge: the output is over its limit (`ayes.schemas.limits`).
        """
        ref = call_ref(call)
        check_size("the output", words(output), MAX_TEXT)
        reconciled = e.Reconciled(happened=happened, output=output, reviewer=self.name)
        return await self._settle(ref, ref.reconciled_by(self.name), reconciled)

    async def _settle(self, ref: CallRef, slot: Slot, event: e.Event) -> Call:
        """Record the event and check that it counts: a fact in another slot may have been first."""
        known = await self._ledger.record(await self._ledger.known_call(ref), slot, event)
        if (void := next((one for one in known.void if one.fact.slot == slot), None)) is not None:
            raise AlreadyFilled(f"{ref} is {known.status.replace('_', ' ')}: {void.why}.")
        return known

    # -------------------------------------------------------------------------------- in advance

    @as_of_the_leader
    async def grant(
        self,
        grant: GrantRef | str,
        tool: str,
        *,
        for_s: float,
        uses: int = 1,
        arguments: str | None = None,
        when: str = "",
        agent: str = "*",
        thread: str = "*",
        reason: str = "",
    ) -> Grant:
        """Approve calls of a tool in advance. Repeating the same grant is safe.

        It is its giver's vote, given early: if a rule asks for more people, their grants are needed
        too. It counts when a call is judged; once people are asked, only their votes count.

        Args:
            grant: `workspace/giver/name`; the giver is this reviewer.
            for_s: seconds from when it is recorded. There is always an end.
            uses: the number of calls that it may let run, 1 to 1,000.
            arguments: exactly these (raw JSON text, compared by value).
            when: a condition on the arguments (`ayes.schemas.conditions`).
            agent, thread: names, or patterns with `*`.

        Raises:
            BadInput: the end, the uses or the condition are not valid.
            UnknownTool: nobody declared the tool.
            BadArguments: they break its schema.
            NotAllowed: no grant may cover this tool, or the giver is another person.
            AlreadyFilled: another grant has this name.
        """
        ref = grant if isinstance(grant, GrantRef) else GrantRef.parse(grant)
        self._check_giver(ref)
        granted = e.Granted(
            tool=tool,
            expires_in_s=for_s,
            uses=uses,
            arguments=arguments,
            when=when,
            agent=agent,
            thread=thread,
            reason=reason,
        )
        if problem := bad_grant(granted):
            raise BadInput(problem)
        if (key := self._own_key()) is not None:
            until = await self._signed_until()
            digest = grant_digest(key.public.name.partition("/")[2], ref, granted, until)
            granted = msgspec.structs.replace(granted, signature=signed(key, digest, until))
        declared = await self.check_grantable(ref.workspace, tool)
        if problem := unjudged_grant(declared, granted):
            raise BadInput(problem)
        if arguments is not None and (problem := declared.problems(arguments)):
            raise BadArguments(problem)
        await self._give("grant", ref, granted)
        [found] = grants_of(await self._ledger.read(ref, REMOVALS, must_include=ref.given))
        if (standing := found.standing(self._ledger.now())) != "in force":
            raise AlreadyFilled(
                f"there was such a grant {ref}, and it is {standing}. Choose another name."
            )
        return found

    async def check_grantable(self, workspace: str, tool: str) -> Tool:
        """Refuse grants for a tool that none may cover; returns its declaration.

        Raises:
            UnknownTool: nobody declared the tool.
            NotAllowed: no grant may cover it.
        """
        self._check_signable(workspace, "grants", "ayes grant give")
        declared = await self._ledger.tool(workspace, tool)
        policies = await self._ledger.policies(workspace)
        if declared.declared.governs or not policies.grantable(tool):
            says = "its declaration" if declared.declared.governs else "never_grant in the policy"
            raise NotAllowed(
                f"no grant may cover {tool}: people look at each call of it, as {says} says. "
                "Nothing was recorded."
            )
        return declared

    def _check_signable(self, workspace: str, what: str, command: str) -> None:
        """Refuse to record something unsigned that would count for nothing."""
        trust = self._ledger.trust
        if self._ledger.signer is None and trust is not None and trust.wants_signed(workspace):
            raise NotAllowed(
                f"only signed {what} count in {workspace}, and {self.name}'s key is not here. Do "
                f"it where it is: {command} --as {self.name}. (A passkey signs votes alone.) "
                "Nothing was recorded."
            )

    async def revoke_grant(self, grant: GrantRef | str, *, reason: str = "") -> Grant:
        """Revoke a grant. Any reviewer may: it only makes things stricter.

        Raises:
            BadInput: there is no such grant.
            AlreadyFilled: it is revoked already.
        """
        ref = grant if isinstance(grant, GrantRef) else GrantRef.parse(grant)
        known = grants_of(await self._ledger.read(ref))
        if not known:
            raise BadInput(
                f"there is no grant {ref}. `ayes grant list` shows those that there are."
            )
        if (revoked := known[0].revoked) is not None:
            raise AlreadyFilled(f"{ref} is revoked: {describe(revoked)}. Nothing was recorded.")
        slot = ref.revoked_by(self.name)
        event = e.GrantRevoked(reviewer=self.name, reason=reason)
        await self._ledger.append_exclusive(slot, event)
        [found] = grants_of(await self._ledger.read(ref, must_include=slot))
        return found

    async def delegate(
        self,
        delegation: DelegationRef | str,
        to: str,
        *,
        starts_at: datetime,
        ends_at: datetime,
        tools: tuple[str, ...] = ("*",),
        reason: str = "",
    ) -> Delegation:
        """Let another person vote in this reviewer's place for a time ("Ben for Ana").

        Repeating the same delegation is safe.

        Args:
            delegation: `workspace/giver/name`; the giver is this reviewer.
            to: the other person.
            starts_at, ends_at: with a time zone.
            tools: names, or patterns with `*`.

        Raises:
            BadInput: it ends before it starts, is over already, is to its giver, or has times
                without a zone.
            BadId: `to` is not a valid name of a person.
            NotAllowed: the giver is another person, or only signed ones count and no key is here.
            AlreadyFilled: another delegation has this name.
        """
        ref = (
            delegation if isinstance(delegation, DelegationRef) else DelegationRef.parse(delegation)
        )
        self._check_giver(ref)
        ids.token("reviewer", to)
        self._check_signable(ref.workspace, "delegations", "ayes delegate give")
        given = e.Delegated(to=to, starts_at=starts_at, ends_at=ends_at, tools=tools, reason=reason)
        if problem := bad_delegation(ref.giver, given, self._ledger.now()):
            raise BadInput(problem)
        if (key := self._own_key()) is not None:
            digest = delegation_digest(key.public.name.partition("/")[2], ref, given)
            given = msgspec.structs.replace(given, signature=signed(key, digest))
        await self._give("delegation", ref, given)
        [found] = delegations_of(await self._ledger.read(ref, REMOVALS, must_include=ref.given))
        return found

    async def end_delegation(
        self, delegation: DelegationRef | str, *, reason: str = ""
    ) -> Delegation:
        """End a delegation before its time. Votes that were cast with it remain valid.

        Raises:
            BadInput: there is no such delegation.
            NotAllowed: another person gave it.
            AlreadyFilled: it was ended before.
        """
        ref = (
            delegation if isinstance(delegation, DelegationRef) else DelegationRef.parse(delegation)
        )
        self._check_giver(ref)
        if not delegations_of(await self._ledger.read(ref)):
            raise BadInput(
                f"there is no delegation {ref}. `ayes delegate list` shows those that there are."
            )
        await self._ledger.append_exclusive(ref.ended, e.DelegationEnded(reason=reason))
        [found] = delegations_of(await self._ledger.read(ref, must_include=ref.ended))
        return found

    # --------------------------------------------------------------------------------------- stops

    @as_of_the_leader
    async def stop(
        self,
        stop: StopRef | str,
        *,
        reason: str,
        agents: tuple[str, ...] = ("*",),
        tools: tuple[str, ...] = ("*",),
        requesters: tuple[str, ...] = ("*",),
        for_s: float | None = None,
    ) -> Stop:
        """Let nothing start from now on that this covers, until it ends. Repeating it is safe.

        A tool that runs already goes on. How many people must resume is what the policies in force
        say now (`resumes_needed`).

        Args:
            stop: `workspace/giver/name`, or `_organisation/giver/name` for all workspaces; the
                giver is this reviewer.
            agents, tools, requesters: names, or patterns with `*`. A call is covered if each fits.
            for_s: seconds after which it ends by itself; None: until people resume.

        Raises:
            BadInput: the reason is empty, or `for_s` is not above 0 or is longer than a century.
            NotAllowed: the policies in force do not let this reviewer stop, or the giver is another
                person.
            AlreadyFilled: another stop has this name, or it has ended.
        """
        ref = stop if isinstance(stop, StopRef) else StopRef.parse(stop)
        self._check_giver(ref)
        check_size("the reason", reason, MAX_REASON)
        if not reason.strip():
            raise BadInput("a stop needs a reason, which everybody reads whose calls wait.")
        if for_s is not None and not 0 < for_s <= MAX_INTERVAL_S:
            raise BadInput(
                f"the stop would last {for_s!r} seconds: give a number above 0, a century at most."
            )
        policies = await self._check_right(ref, "may_stop", "stop")
        given = e.Stopped(
            reason=reason,
            agents=agents,
            tools=tools,
            requesters=requesters,
            expires_in_s=for_s,
            resumes_needed=resumes_needed(policies),
        )
        await self._give("stop", ref, given)
        [found] = stops_of(await self._ledger.read(ref, must_include=ref.given))
        if not found.holds(await self._ledger.log.clock()):
            raise AlreadyFilled(
                f"there was such a stop {ref}, and it has ended. Choose another name."
            )
        return found

    @as_of_the_leader
    async def resume(self, stop: StopRef | str, *, reason: str = "") -> Stop:
        """Say that a stop should end. It ends when the gate has counted enough people.

        Raises:
            BadInput: nobody gave a stop of this name.
            NotAllowed: the policies in force do not let this reviewer resume.
            AlreadyFilled: it has ended, or this reviewer has said so before.
        """
        ref = stop if isinstance(stop, StopRef) else StopRef.parse(stop)
        check_size("the reason", reason, MAX_REASON)
        found = known_stop(ref, await self._ledger.read(ref))
        if not found.holds(await self._ledger.log.clock()):
            raise AlreadyFilled(f"the stop {ref} has ended. Nothing was recorded.")
        await self._check_right(ref, "may_resume", "resume")
        slot = ref.resumed_by(self.name)
        await self._ledger.append_exclusive(slot, e.Resumed(reason=reason))
        [resumed] = stops_of(await self._ledger.read(ref, must_include=slot))
        return resumed

    async def _check_right(self, ref: StopRef, key: str, what: str) -> Policies:
        policies = await self._ledger.policies(ref.workspace)
        by_group, now = any(map(is_group, policies.people(key))), self._ledger.now()
        people = await self._ledger.people(*([self.name] if by_group else []))
        if not may(policies, people, self.name, key, ref.workspace, now):
            where = "all workspaces" if ref.workspace == ORGANISATION else ref.workspace
            why = f" {people.groups_words(self.name, now)}" if by_group else ""
            raise NotAllowed(
                f"{self.name} may not {what} {where}: {key} in the policy names others, or the "
                f"name was removed or is of other workspaces.{why} Nothing was recorded."
            )
        return policies

    # ------------------------------------------------------------------------------------ accounts

    async def bind(self, account: str, seen: LedgerClient | None = None) -> People:
        """Record that an account elsewhere is this reviewer's own. Repeating it is safe.

        Args:
            account: `slack:<team>/<user>`, or `openid:<issuer>#<subject>`.
            seen: who reads whose accounts there are, if the reviewer may not.

        Raises:
            NotAllowed: it is another person's, or the reviewer was removed.
            TooLarge: it has over `MAX_REASON` characters.
        """
        check_size("the account", account, MAX_REASON)
        event = e.AccountBound(account=account)
        people = await (seen or self._ledger).people()
        if account not in people.accounts and not people.is_removed(self.name):
            slot = partial(account_slot, self.name)
            people = await self._ledger.record_person(slot, event, seen)
        if people.is_removed(self.name):
            raise NotAllowed(f"{self.name} was removed, and can bind no account.")
        if (whose := people.accounts.get(account)) != self.name:
            raise NotAllowed(
                f"the account {account} is {whose}'s, who bound it first. An operator can free all "
                f"accounts of {whose}: ayes people release {whose}"
            )
        return people

    def _check_giver(self, ref: GrantRef | DelegationRef | StopRef) -> None:
        if ref.giver != self.name:
            only = f"only {ref.giver} can give or end {ref}, and not {self.name}"
            raise NotAllowed(f"{only}. Nothing was recorded.")

    async def _give(
        self, what: str, ref: GrantRef | DelegationRef | StopRef, given: e.Event
    ) -> None:
        """Record a grant, a delegation or a stop, unless the same one is recorded already."""
        first = await self._ledger.try_append(ref.given, given)
        if first is not None and not _is_given(first.event, given):
            raise AlreadyFilled(
                f"there is another {what} {ref}: {describe(first)}. Choose another name."
            )


def _is_given(event: object, wanted: e.Event) -> bool:
    """Whether a recorded grant, delegation or stop is the wanted one. A repeat is signed anew."""
    if not isinstance(event, e.Granted | e.Delegated) or type(event) is not type(wanted):
        return same_content(event, wanted)
    assert isinstance(wanted, e.Granted | e.Delegated)
    is_as_good = bool(event.signature) or not wanted.signature
    signature = event.signature
    return is_as_good and same_content(event, msgspec.structs.replace(wanted, signature=signature))


def _check_typed(call: Call, ballot: Ballot) -> None:
    """Refuse to let a call run without the tool's name, where the rule wants it typed; and another
    tool's name, or one with a vote that lets nothing run.
    """
    asking, tool = call.approval_request, call.wish.tool
    assert asking, "the vote was checked before"
    verdict, typed = ballot.verdict, ballot.typed
    runs = verdict in ("approve", "break_glass")
    if typed and not runs:
        only = "typed goes with approve or break_glass"
        raise BadInput(f"{only}, and the verdict is {verdict}. Nothing was recorded.")
    if typed not in ("", tool):
        raise BadInput(f"{call.ref} runs {tool}, and not {typed!r}. Nothing was recorded.")
    if runs and not typed and asking.confirm == "typed":
        raise BadInput(
            f"the rule {asking.rule!r} wants the name of the tool typed before {call.ref} runs. "
            f"Nothing was recorded. Look at the call by itself, and give typed={tool!r} with the "
            f"vote (at a terminal: --typed {tool})."
        )
