"""The checker sees each invariant broken, in a log and a journal that were right before."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checker import check
from long import sampled
from paths import TESTS
from world import Told, simulate

type Lines = list[dict[str, Any]]
type Wrong = Callable[[Lines, Lines], None]

#: An invariant, and a change of the log or the journal that breaks it.
WRONGS: list[tuple[str, Wrong]] = []


def breaks(invariant: str) -> Callable[[Wrong], None]:
    return lambda wrong: WRONGS.append((invariant, wrong))


@pytest.fixture(scope="module")
def right() -> Told:
    told = simulate("checker", 80)
    assert check(told.log, told.journal) == []
    return told


def only(lines: Lines, **wanted: str) -> dict[str, Any]:
    """The first line with these values."""
    return next(one for one in lines if all(one.get(name) == wanted[name] for name in wanted))


def fact(log: Lines, *texts: str) -> dict[str, Any]:
    """The first fact whose subject and payload have these texts."""
    return next(one for one in log if all(text in one["subject"] + one["data"] for text in texts))


def changed(line: dict[str, Any], **values: Any) -> None:
    line["data"] = json.dumps(json.loads(line["data"]) | values)


def by_people(log: Lines) -> dict[str, Any]:
    return fact(log, '"type":"Approved","', '"ground":"people"')


@breaks("I1")
def it_ran_without_a_claim(log: Lines, journal: Lines) -> None:
    ref = fact(log, '"type":"Denied"')["subject"].split(".")
    run = only(journal, kind="tool", did="started")
    run["call"] = f"{ref[1]}/{ref[2]}/{ref[4]}"


@breaks("I1")
def it_ran_with_other_arguments(log: Lines, journal: Lines) -> None:
    only(journal, kind="tool", did="started")["arguments"] = {"order": "other"}


@breaks("I2")
def another_decision_is_told(log: Lines, journal: Lines) -> None:
    only(journal, kind="told", did="decision")["decision"] = "another"


@breaks("I3")
def another_rule_decides(log: Lines, journal: Lines) -> None:
    changed(by_people(log), rule="another")


@breaks("I4")
def the_votes_are_missing(log: Lines, journal: Lines) -> None:
    call = by_people(log)["subject"].removesuffix("decided")
    log[:] = [one for one in log if not one["subject"].startswith(f"{call}vote.")]


@breaks("I5")
def it_expires_early(log: Lines, journal: Lines) -> None:
    expired = fact(log, '"type":"Expired"')
    call = expired["subject"].removesuffix("decided")
    expired["time"] = fact(log, f"{call}gated")["time"]


@breaks("I6")
def a_slot_has_two_facts(log: Lines, journal: Lines) -> None:
    log.append(log[-1] | {"seq": len(log) + 1})


@breaks("I7")
def it_runs_twice(log: Lines, journal: Lines) -> None:
    journal.append(only(journal, kind="tool", did="started", tool="pay"))


@breaks("I7")
def it_has_no_end(log: Lines, journal: Lines) -> None:
    log.remove(fact(log, '"type":"ToolReturned"'))


@breaks("I8")
def what_was_acknowledged_is_missing(log: Lines, journal: Lines) -> None:
    log.remove(fact(log, '"type":"Voted"'))


@breaks("I8")
def a_refusal_is_wrong(log: Lines, journal: Lines) -> None:
    told = only(journal, kind="told", did="decision")
    journal.append(told | {"kind": "refused", "error": "UnknownCall"})


@breaks("I9")
def another_end_is_shown(log: Lines, journal: Lines) -> None:
    shown = next(one["shown"] for one in journal if one["kind"] == "model" and one["shown"])
    shown[next(iter(shown))] = "something else"


@breaks("I10")
def a_call_is_not_shown(log: Lines, journal: Lines) -> None:
    shown = next(one["shown"] for one in journal if one["kind"] == "model" and one["shown"])
    shown.popitem()


@breaks("I11")
def a_status_is_made_up(log: Lines, journal: Lines) -> None:
    only(journal, kind="told", did="request")["status"] = "returned"


@breaks("I12")
def a_newer_fact_is_changed(log: Lines, journal: Lines) -> None:
    changed(fact(log, "FromTheFuture"), x=1)


@breaks("I13")
def the_queue_has_more(log: Lines, journal: Lines) -> None:
    only(journal, kind="end")["queue"].append("shop.orders-0.c0")


def stopped(log: Lines, first: int, last: int, **limits: Any) -> None:
    """Stop a workspace from just before one place of the log until just after another, in a name
    that may not.
    """
    stop = f"ledger.{log[first]['subject'].split('.')[1]}._stop.nobody.s1."
    given = {"type": "Stopped", "reason": "no", **limits}
    said = ("ended", {"type": "StopEnded"}, last, 0.5), ("given", given, first, -0.5)
    for tail, event, place, aside in said:  # the later one first, so that the places are right
        line = log[place] | {"subject": stop + tail, "data": json.dumps(event)}
        log.insert(place + (aside > 0), line | {"seq": line["seq"] + aside})


@breaks("I1")
def it_starts_while_stopped(log: Lines, journal: Lines) -> None:
    claim = log.index(fact(log, ".claim.", '"type":"ToolStarted"', '"kind":"executor"'))
    stopped(log, claim, claim)


@breaks("I14")
def it_is_approved_while_stopped(log: Lines, journal: Lines) -> None:
    stopped(log, 0, len(log) - 1, tools=["look"])


@breaks("I14")
def a_model_is_asked_while_stopped(log: Lines, journal: Lines) -> None:
    asked = log.index(fact(log, ".turn.1.asked.1"))
    stopped(log, asked, asked + 1)
    log[asked + 3]["time"] = only(journal, kind="end")["at"]


@breaks("I14")
def a_stop_has_no_end(log: Lines, journal: Lines) -> None:
    ended = ('"type":"StopEnded"', '"resumed_by"')
    log[:] = [one for one in log if not all(word in one["data"] for word in ended)]


@breaks("I14")
def a_stop_ends_without_a_cause(log: Lines, journal: Lines) -> None:
    log[:] = [one for one in log if '"type":"Resumed"' not in one["data"]]


@breaks("I8")
def a_program_ends(log: Lines, journal: Lines) -> None:
    journal.append({"kind": "ended", "process": "gate.1", "why": "BrokerRefused"})


EACH = [pytest.param(*one, id=one[1].__name__) for one in WRONGS]


@pytest.mark.parametrize(("invariant", "wrong"), sampled(EACH, *EACH[::3]))
def test_what_is_wrong_is_seen(right: Told, invariant: str, wrong: Wrong) -> None:
    """Each of I1 to I14 is checked: with this one change it is reported as broken."""
    log, journal = copy.deepcopy(right.log), copy.deepcopy(right.journal)
    wrong(log, journal)
    assert invariant in {found.invariant for found in check(log, journal)}


def test_files_are_checked(right: Told, tmp_path: Path) -> None:
    """`python -m checker LOG JOURNAL` prints each violation, and exits with 1 if there are any."""
    journal = [*right.journal, {"kind": "ended", "process": "gate.1", "why": "BrokerRefused"}]
    for name, lines in (("log", right.log), ("journal", right.journal), ("wrong", journal)):
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def checked(journal: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "checker", tmp_path / "log", tmp_path / journal]
        return subprocess.run(
            program, cwd=TESTS / "support", capture_output=True, text=True, check=False
        )

    assert (checked("journal").returncode, checked("journal").stdout) == (0, "")
    wrong = checked("wrong")
    assert (wrong.returncode, wrong.stdout) == (1, "I8 gate.1: ended by itself: BrokerRefused\n")
