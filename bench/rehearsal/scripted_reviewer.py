"""The scripted reviewer: votes in a rehearsal as a person would, always the same.

    name = "ana"                                # who votes; absent: reviewer
    otherwise = "deny"                          # approve | deny; absent: leaves the call pending

    [[vote]]
    tools = ["book_*"]                          # names, or patterns with * and ?
    verdict = "approve"                         # approve | deny | answer
    reason = "Within the budget."
    arguments = '{"order": "A-17"}'             # only with approve: these instead
    answer = "Ask again tomorrow."              # only with answer: replaces the tool's output
    is_error = true                             # only with answer: the model reads it as an error

The first vote whose pattern matches the tool is given.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ayes.ledger.clients.reviewers import Ballot
from ayes.schemas import strict_json
from ayes.schemas.policy import ToolPatterns
from ayes.schemas.toml_files import TomlModel, checked_token, mistake, read_text, read_toml

type Verdict = Literal["approve", "deny", "answer"]


class ScriptedVote(TomlModel):
    tools: ToolPatterns
    verdict: Verdict
    reason: str = ""
    #: Raw JSON text.
    arguments: str | None = None
    answer: str = ""
    is_error: bool = False

    @field_validator("arguments", "answer", "is_error")
    @classmethod
    def _goes_with_verdict[T](cls, value: T, info: ValidationInfo) -> T:
        goes_with = "approve" if info.field_name == "arguments" else "answer"
        if (verdict := info.data.get("verdict", goes_with)) != goes_with:
            raise ValueError(
                f'only a vote with verdict = "{goes_with}" has this; here it is {verdict!r}.'
            )
        return value

    @field_validator("arguments")
    @classmethod
    def _is_json(cls, text: str) -> str:
        strict_json.read(text)
        return text

    @model_validator(mode="after")
    def _answers_something(self) -> Self:
        if self.verdict == "answer" and not self.answer:
            raise mistake('a vote with verdict = "answer" needs an answer for the model to read.')
        return self


class Script(TomlModel):
    """Who votes, and how."""

    name: str = "reviewer"
    #: If absent, a call that no vote matches stays pending.
    otherwise: Literal["approve", "deny"] | None = None
    votes: Annotated[tuple[ScriptedVote, ...], Field(strict=False, alias="vote")] = ()

    @field_validator("name")
    @classmethod
    def _can_vote(cls, name: str) -> str:
        return checked_token("reviewer", name)


_BUILT_IN: Final = {"approve": Script(otherwise="approve"), "deny": Script(otherwise="deny")}


def script_for(choice: str) -> Script:
    """The script for the value of `--reviewer`: `approve`, `deny`, or a file.

    Raises:
        BadFile: the file cannot be read, or has mistakes.
    """
    return _BUILT_IN.get(choice) or read_script(read_text(choice), choice)


def read_script(text: str, path: str) -> Script:
    """Read the text of a reviewer file; `path` is only named in errors.

    Raises:
        BadFile: with the line and the number of the vote of each mistake.
    """
    return read_toml(Script, text, path)


def vote(script: Script, tool: str) -> Ballot | None:
    """The reviewer's vote on a call of this tool; `None` leaves it pending."""
    for one in script.votes:
        if any(fnmatchcase(tool, pattern) for pattern in one.tools):
            return Ballot(one.verdict, one.reason, one.arguments, one.answer, one.is_error)
    return Ballot(script.otherwise) if script.otherwise else None
