"""Which calls somebody looks for: `tool:refund amount>100 due<1h -agent:desk-*`.

A query is a list of words, all of which must hold; one without words selects every call.

    refund  "wrong size"        the text of the call: its name, tool, requester, agent, labels and
                                rule, the reason, and the text of its arguments
    tool:refund  rule:"a b"     a field of the call (`NAMES`): a name, or a pattern with `*` and `?`
    label:team  label:team=x    a label
    is:mine  is:snoozed         for the reader to decide; put aside by the reader
    is:overdue                  past its deadline
    for:ben  handed:ana         handed to ben; handed over by ana
    due<1h  age>2d              the time until its deadline, and since people were asked
    since:2026-11-01            decided then or later; until: before that
    amount>100  customer/id:7   an argument, by its name or by the end of its path; `/amount` begins
                                at the top. Numbers are compared as decimals
    -word                       not that

Upper and lower case are the same, except in the names of workspaces, threads and calls. Arguments
that a tool declares as secret are not searched.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import translate
from typing import Any, Final, NamedTuple, Self
from unicodedata import normalize

import msgspec
from msgspec import Struct

from ayes.ledger.lifecycle import Status
from ayes.schemas.amounts import number
from ayes.schemas.durations import parse_time, seconds
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import is_token
from ayes.schemas.redaction import without

_MAX_LENGTH: Final = 1000
_MAX_WORDS: Final = 20
#: The fields of a call that words can name, and their values.
NAMES: Final[dict[str, Callable[[Any], Iterable[str]]]] = {
    "workspace": lambda one: (one.workspace,),
    "thread": lambda one: (one.thread, f"{one.workspace}/{one.thread}"),
    "call": lambda one: (_name(one), _name(one).rpartition("/")[2]),
    "tool": lambda one: (one.tool,),
    "requester": lambda one: (one.requester,),
    "agent": lambda one: (one.agent,),
    "rule": lambda one: (one.rule,),
    "for": lambda one: one.awaits,
    "handed": lambda one: one.handed or (),
    "label": lambda one: (*(one.labels or ()), *_labels(one)),
    "by": lambda one: one.by,
    "verdict": lambda one: (one.verdict,),
    "status": lambda one: (one.status,),
}
#: Those that are ids, in which case counts.
_IDS: Final = ("workspace", "thread", "call")
#: Words that need what only pending calls have, or only decided ones.
OF_PENDING: Final = ("is", "due", "age", "for", "handed")
OF_DECIDED: Final = ("by", "verdict", "status", "since", "until")
#: The words for times of decisions.
TIMES: Final = {"since": operator.ge, "until": operator.lt}
#: The ways in which a call can be decided.
VERDICTS: Final = ("approved", "denied", "answered", "expired", "withdrawn", "superseded")
_CHOICES: Final = {
    "is": ("mine", "overdue", "snoozed"),
    "verdict": VERDICTS,
    "status": tuple(map(str, Status)),
}
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_WILDCARDS: Final = frozenset("*?")
_KEY: Final = re.compile(r"((?:/|[^\W\d])[\w./-]*)(:(?!//)|<=|>=|<|>)")
_VALUE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s"]+)', re.DOTALL)
_arguments: Final = msgspec.json.Decoder(float_hook=Decimal)


class Seen(NamedTuple):
    """What a query rests on besides the call."""

    now: datetime
    #: Whether a call is for the reader to decide; None: nobody knows who reads.
    mine: Callable[[Any], bool] | None = None
    #: Whether the reader has put a call aside; None: nobody knows who reads.
    snoozed: Callable[[Any], bool] | None = None
    #: The places of a call's arguments that are secret (JSON pointers); None: they are unknown, so
    #: all of them are.
    secret: Callable[[Any], Collection[str] | None] = lambda _: ()


#: For queries without time and reader.
NOTHING: Final = Seen(datetime.min.replace(tzinfo=UTC))


class Word(Struct, frozen=True):
    #: A field, or the path of an argument; empty: the word is searched in the text.
    key: str
    #: `:`, or how it is compared.
    relation: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        head = f"{'-' * self.negated}{self.key}{self.relation if self.key else ''}"
        is_bare = re.fullmatch(r'[^\s"]+', self.value) and (
            bool(self.key) or (self.value[0] != "-" and not _KEY.match(self.value))
        )
        quoted = re.sub(r'(["\\])', r"\\\1", self.value)
        return head + (self.value if is_bare else f'"{quoted}"')

    @property
    def is_argument(self) -> bool:
        return bool(self.key) and self.key not in _KEYS

    def holds(self, seen: Seen, text: Callable[[Any], str]) -> Callable[[Any], bool]:
        """Whether it is true of a call; `text` is what is searched of one."""
        test = self._test(seen, text)
        return (lambda one: not test(one)) if self.negated else test

    def _test(self, seen: Seen, text: Callable[[Any], str]) -> Callable[[Any], bool]:
        if not self.key:
            part = folded(self.value)
            return lambda one: part in text(one)
        if names := NAMES.get(self.key):
            fits = _like(self.value, str if self.key in _IDS else str.lower)
            return lambda one: any(map(fits, names(one)))
        if self.key == "is" and self.value != "overdue":
            of_reader = seen.mine if self.value == "mine" else seen.snoozed
            if of_reader is None:
                raise BadInput(f"{self} is about a reader, who is not known. Add --as NAME.")
            return of_reader
        if self.key == "is":
            return lambda one: one.due_at is not None and one.due_at <= seen.now
        if self.key in TIMES:
            at, is_within = self.time, TIMES[self.key]
            return lambda one: is_within(one.decided_at, at)
        if self.key in {"due", "age"}:
            than, length = _COMPARISONS[self.relation], seconds(self.value)
            if self.key == "age":
                return lambda one: than((seen.now - one.gated_at).total_seconds(), length)
            return lambda one: (
                one.due_at is not None and than((one.due_at - seen.now).total_seconds(), length)
            )
        return self._argument_test(seen, text)

    def _argument_test(self, seen: Seen, text: Callable[[Any], str]) -> Callable[[Any], bool]:
        path, sought, fits = Path.of(self.key), number(self.value), _like(self.value, folded)

        def is_it(value: Any) -> bool:
            if self.relation == ":":
                is_number = sought is not None and number_of(value) == sought
                return is_number or fits(_written(value))
            found = number_of(value)
            return found is not None and _COMPARISONS[self.relation](found, sought)

        # Few calls have such an argument, and reading arguments takes longest.
        parts = [path.last]
        if self.relation == ":" and sought is None and not set(self.value) & _WILDCARDS:
            parts.append(folded(self.value))
        return lambda one: (
            all(map(text(one).__contains__, parts)) and any(map(is_it, path.values(one, seen)))
        )

    @property
    def time(self) -> datetime:
        return parse_time(self.key, self.value)


_KEYS: Final = frozenset((*NAMES, *OF_PENDING, *OF_DECIDED))


class CallQuery(Struct, frozen=True):
    """Selects calls: all those of which each word is true."""

    words: tuple[Word, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The query of this text.

        Raises:
            BadInput: a word that is not one, with its place.
        """
        if len(text) > _MAX_LENGTH:
            raise BadInput(f"a query may have {_MAX_LENGTH:,} characters, not {len(text):,}.")
        words, place = list[Word](), 0
        while (place := len(text) - len(text[place:].lstrip())) < len(text):
            word, end = _word_at(text, place)
            if problem := _problem(word):
                raise BadInput(f"{text[place:end]} (character {place + 1}): {problem}")
            words.append(word)
            place = end
        if len(words) > _MAX_WORDS:
            raise BadInput(f"a query may have {_MAX_WORDS} words, not {len(words)}.")
        return cls(tuple(words))

    @classmethod
    def of(cls, **names: str) -> Self:
        """Calls by the values of `NAMES`; an empty one selects all."""
        return cls(tuple(Word(key, ":", value) for key, value in names.items() if value))

    def __str__(self) -> str:
        return " ".join(map(str, self.words))

    def __and__(self, other: Self) -> Self:
        return type(self)((*self.words, *other.words))

    def without(self, word: Word) -> Self:
        return type(self)(tuple(one for one in self.words if one != word))

    def only(self, what: str, *other: str) -> Self:
        """This query.

        Args:
            what: which calls it is to select.
            other: words, by key or whole, that need what these do not have.

        Raises:
            BadInput: it has one.
        """
        for one in self.words:
            if {one.key, f"{one.key}:{one.value}"} & {*other}:
                raise BadInput(f"{one} does not select {what}. Leave it out.")
        return self

    def exact(self, key: str) -> str:
        """The value that all calls have which it selects; empty if it does not name one."""
        found = (one.value for one in self.words if one.key == key and not one.negated)
        return next((value for value in found if not set(value) & _WILDCARDS), "")

    def needs(self, what: str) -> bool:
        """Whether it rests on what the reader is asked (`mine`), or has put aside (`snoozed`)."""
        return any((one.key, one.value) == ("is", what) for one in self.words)

    @property
    def is_mine(self) -> bool:
        return MINE.words[0] in self.words

    @property
    def searches(self) -> bool:
        """Whether it searches arguments, of which some may be secret."""
        return any(not one.key or one.is_argument for one in self.words)

    def selecting(
        self, seen: Seen, text: Callable[[Any], str] | None = None
    ) -> Callable[[Any], bool]:
        """Whether it selects a call, an object with what its words name.

        Args:
            text: what is searched of a call, if that is known already.
        """
        read = text or (lambda one: text_of(one, seen))
        # What is compared at once comes before what must be read.
        first = sorted(self.words, key=lambda one: not one.key or one.is_argument)
        tests = [one.holds(seen, read) for one in first]
        return tests[0] if len(tests) == 1 else lambda one: all(test(one) for test in tests)

    def covers(self, key: str) -> bool:
        """Whether the key `workspace.thread.call` is of its workspace and thread."""
        place = _Place(*(*key.split("."), "", "")[:2])
        where = (one for one in self.words if one.key in {"workspace", "thread"})
        return all(one.holds(NOTHING, str)(place) for one in where)


class _Place(NamedTuple):
    workspace: str
    thread: str


ALL: Final = CallQuery()
MINE: Final = CallQuery((Word("is", ":", "mine"),))
SNOOZED: Final = CallQuery((Word("is", ":", "snoozed"),))
AWAKE: Final = CallQuery((Word("is", ":", "snoozed", negated=True),))


def text_of(one: Any, seen: Seen) -> str:
    """What is searched of a call."""
    fields = (_name(one), one.tool, one.requester, one.agent, one.rule, one.reason, *_labels(one))
    secret = seen.secret(one)
    if secret is None:
        arguments = ""
    elif secret or "\\" in one.arguments:
        found = _leaves(_read(one.arguments, secret))
        arguments = "\n".join(part for keys, value in found for part in (*keys, _written(value)))
    else:
        arguments = one.arguments
    return folded("\n".join((*fields, arguments)))


class Path(NamedTuple):
    """The end of a path to arguments; positions in lists are left out of it."""

    keys: tuple[str, ...]
    #: Whether it begins at the top.
    is_whole: bool

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(tuple(folded(text).strip("/").split("/")), text.startswith("/"))

    @property
    def last(self) -> str:
        return self.keys[-1]

    def values(self, one: Any, seen: Seen) -> Iterator[Any]:
        """The arguments of a call that are there, but for the secret ones."""
        secret, end = seen.secret(one), len(self.keys)
        if secret is None:
            return
        for keys, value in _leaves(_read(one.arguments, secret)):
            if keys[-end:] == self.keys and (len(keys) == end or not self.is_whole):
                yield value


def folded(text: str) -> str:
    """A text without case, in one form of Unicode (NFKC)."""
    return (text if text.isascii() else normalize("NFKC", text)).casefold()


def number_of(value: Any) -> Decimal | None:
    """The number that an argument is, or is written as; None if it is not one."""
    if isinstance(value, str):
        return number(value)
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return Decimal(value) if is_number else None


def _word_at(text: str, place: int) -> tuple[Word, int]:
    """The word that begins here, and where it ends."""
    negated = text[place] == "-"
    key = _KEY.match(text, place + negated)
    begin = key.end() if key else place + negated
    value = _VALUE.match(text, begin)
    end = value.end() if value else begin
    if value is None and text[begin : begin + 1] == '"':
        raise BadInput(f"the quote at character {begin + 1} of the query has no end. Close it.")
    if text[end : end + 1].strip():
        raise BadInput(
            f"a quote stands within a word, at character {end + 1} of the query. Put a blank "
            "before or after it, or quote the whole word."
        )
    quoted, bare = value.groups() if value else (None, "")
    found = re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted is not None else bare
    if value is None and key:
        raise BadInput(f"{key[0]} at character {place + 1} of the query has no value. Add one.")
    return Word(key[1] if key else "", key[2] if key else ":", found, negated), end


def _problem(word: Word) -> str:
    """Why nobody can understand a word; empty if it can be understood."""
    key, relation, value, _ = (getattr(word, name) for name in Word.__struct_fields__)
    if not key:
        return "" if value.strip() else "it searches for nothing. Leave it out."
    if key in {"due", "age"}:
        if relation == ":" or seconds(value) is None:
            return f"{key} is compared with a duration. Write it as in {key}<1h, {key}>2d."
    elif relation != ":":
        if key in _KEYS:
            return f"{key} is not compared. Write {key}:{value}, or /{key} for an argument."
        if number(value) is None:
            return f"only numbers are compared, as in {key}>100."
    elif key in _IDS and not all(map(_is_id_like, value.split("/"))):
        return f"{value!r} is not the name of a {key}."
    elif value not in _CHOICES.get(key, (value,)):
        return f"the value of {key} is one of {', '.join(_CHOICES[key])}."
    elif key in TIMES:
        try:
            word.time  # noqa: B018 - it is read
        except BadInput as problem:
            return str(problem)
    return ""


def _is_id_like(value: str) -> bool:
    return is_token(re.sub(r"[*?]", "x", value))


def _like(sought: str, fold: Callable[[str], str]) -> Callable[[str], bool]:
    """Whether a name is the one that is sought, or matches that pattern."""
    wanted = fold(sought)
    if not set(wanted) & _WILDCARDS:
        return lambda name: fold(name) == wanted
    # Only * and ? are wildcards here; a bracket is a bracket.
    fits = re.compile(translate(wanted.replace("[", "[[]"))).match
    return lambda name: fits(fold(name)) is not None


def _name(one: Any) -> str:
    return one.call if "/" in one.call else f"{one.workspace}/{one.thread}/{one.call}"


def _labels(one: Any) -> list[str]:
    return [f"{name}={value}" for name, value in (one.labels or {}).items()]


def _read(arguments: str, secret: Collection[str]) -> Any:
    """The value of arguments without what is secret; None if they cannot be read."""
    try:
        return without(_arguments.decode(arguments), secret)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _leaves(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The texts, numbers and constants in a value, each with the names that lead to it."""
    left: list[tuple[tuple[str, ...], Any]] = [((), value)]
    for keys, one in left:  # it grows meanwhile
        if isinstance(one, dict):
            left += [((*keys, folded(name)), inner) for name, inner in one.items()]
        elif isinstance(one, list):
            left += [(keys, inner) for inner in one]
        else:
            yield keys, one


def _written(value: Any) -> str:
    return value if isinstance(value, str) else str(value).lower().replace("none", "null")
