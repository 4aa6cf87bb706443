"""The command that judges a site by OWASP AISVS, chapter C9."""

from collections import Counter
from typing import Annotated, Final, get_args

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import option
from ayes.ledger.nats.credentials import Store
from ayes.ops.inspection.scorecard import Answer, Score, scorecard
from ayes.ops.tokens import own_name
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import token

app: Final = commands()


@command(app, "scorecard", examples="ayes scorecard --as ana")
async def print_scorecard(
    name: Annotated[
        str,
        option(
            "--as",
            "NAME",
            "The reviewer who gives a stop and resumes; by default your name on this machine.",
            envvar="AYES_AS",
        ),
    ] = "",
    *,
    session: Session,
) -> None:
    """Judge this site by the 34 lines of OWASP AISVS 1.0, chapter C9, with the evidence of each.
    Attacks are made in the workspace `scorecard`: their facts are real and stay.
    """
    if session.url:
        raise BadInput(
            "the scorecard needs the logins of all roles, and a URL is one login. Name the store "
            "with --store instead of --url."
        )
    person = token("reviewer", name) if name else own_name()
    scores = await scorecard(Store(session.store), person)
    counts = Counter(one.answer for one in scores)
    every = {answer: counts[answer] for answer in get_args(Answer.__value__)}
    session.print_rows((one, _line(one)) for one in scores)
    session.print(every, ", ".join(f"{count} {answer}" for answer, count in every.items()))


def _line(one: Score) -> str:
    what = f"{one.requirement} (level {one.level})"
    return f"{one.number:6}  {one.answer:8}  {what}: {one.evidence}"
