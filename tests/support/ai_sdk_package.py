"""The Vercel AI SDK from npm, and histories in its format."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from stories import REF, Story

from ayes.projections.formats.common import tool_name
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas import strict_json


def wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a") -> e.Wish:
    return e.Wish(tool=tool, arguments=arguments, provider_id=provider_id)


def entries_of(facts) -> tuple[Entry, ...]:
    return history(thread_of(REF, facts)).entries


def ended(kind: str, text="done", **fields) -> list[Entry]:
    """A turn with one call that ended this way."""
    is_error = kind not in {"returned", "answered", "reconciled"}
    one = wish(**fields)
    return [Assistant(1, (one,)), Outcome("1-0", one.tool, one.provider_id, kind, text, is_error)]


def visible(text: str) -> str:
    return text if text.strip() else "(no text)"


def carried(entries) -> tuple[ConversationStep, ...]:
    """The entries as steps, without the parts that the format cannot carry."""
    steps: list[ConversationStep] = []
    used: set[str] = set()
    ids: dict[str, str] = {}
    for entry in entries:
        opening = all(isinstance(step, Spoken) and step.role == "system" for step in steps)
        match entry:
            case System(text=text) if opening:
                steps.append(Spoken("system", visible(text)))
            case System(text=text):
                steps.append(Spoken("user", f"[Note from the system] {text}"))
            case User(text=text):
                steps.append(Spoken("user", visible(text)))
            case Note(text=text, name=name):
                steps.append(Spoken("user", f"[Note from {name or 'the system'}] {text}"))
            case Assistant(turn=turn, parts=parts):
                kept, index = [], 0
                for part in parts:
                    if isinstance(part, e.Wish):
                        id_ = part.provider_id
                        if id_ in used or not id_:
                            id_ = f"call_{turn}-{index}"
                        while id_ in used:
                            id_ += "_"
                        used.add(id_)
                        ids[f"{turn}-{index}"] = id_
                        index += 1
                        kept.append(e.Wish(tool_name(part.tool), value_of(part.arguments), id_))
                    elif isinstance(part, e.Text) and part.text.strip():
                        kept.append(part)
                steps.append(RecordedReply(tuple(kept) or (e.Text("(no text)"),)))
            case Outcome(call=call, tool=tool, text=text, is_error=is_error):
                said = visible(text) if is_error else text
                steps.append(Output(ids[call], tool_name(tool), said, is_error=is_error))
    return tuple(steps)


def value_of(arguments: str) -> str:
    """Arguments that are an object without blanks; others as they are, and nothing as an empty
    object.
    """
    try:
        value = strict_json.read(arguments or "{}")
    except strict_json.BadJson:
        return arguments
    return (
        json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if isinstance(value, dict)
        else arguments
    )


def facts_from(steps) -> list:
    """The steps as the facts that they would have left here."""
    story, turn, answered = Story(), 0, 0
    wishes: tuple[e.Wish, ...] = ()
    for step in steps:
        match step:
            case Spoken(role=role, text=text):
                story.say(text, role)
            case RecordedReply(parts=parts):
                turn, answered, wishes = turn + 1, 0, step.wishes
                story.turn(turn, *parts)
            case Output(text=text, is_error=is_error):
                story.live(
                    turn, answered, wishes[answered], "failed" if is_error else "returned", text
                )
                answered += 1
    return story.facts


def installed() -> Path:
    """A folder with the npm package, installed once for all runs on this machine."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not here, so the AI SDK itself cannot be asked")
    folder = Path(tempfile.gettempdir()) / f"ayes-ai-sdk-6-{os.getuid()}"
    if not (folder / "node_modules").exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        try:
            done = subprocess.run(
                [
                    "npm",
                    "install",
                    "ai@6",
                    "--no-audit",
                    "--no-fund",
                    "--ignore-scripts",
                    "--fetch-retries=0",
                ],
                cwd=fresh,
                timeout=60,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(
                "the npm registry did not answer within 60 s, so the AI SDK itself cannot be asked"
            )
        if done.returncode != 0:
            pytest.skip(
                f"npm cannot install the AI SDK, so it cannot be asked: {done.stderr[-200:]}"
            )
        with contextlib.suppress(OSError):  # another run was first
            fresh.rename(folder)
    return folder


def asked(folder: Path, script: str, lists: list) -> list:
    """The SDK's verdict on each list."""
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script],
        cwd=folder,
        input=json.dumps(lists),
        timeout=50,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == len(lists)
    return told
