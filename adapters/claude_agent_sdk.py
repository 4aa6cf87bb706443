"""Claude Agent SDK: its hooks ask the ledger before a tool runs, and record what became of it.

    options = approved(ClaudeAgentOptions(cwd="."), kernel)
    async for message in query(prompt="Clean up the branch.", options=options):
        ...

The hooks are those of Claude Code (`claude_code.py`), in the program of the agent. Hooks are used
and not `can_use_tool`, which is not asked about what settings or rules allow. Whatever they raise
stops the tool, as does a hook that Claude Code cannot call (`on_failure`).

A call that nobody decides within the kernel's `patience_s` is denied, and the model reads how to
come back: the same call, asked again in this session, runs once after the approval.
"""

from dataclasses import replace
from typing import Any, Final

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher

from ayes.adapters.claude_code import Deny, after, before, decision_json, event_of
from ayes.adapters.kernel import Kernel
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.adapters.claude_agent_sdk")

#: What a hook needs beside the time in which people are awaited.
_MORE_S: Final = 60.0


def approved(options: ClaudeAgentOptions, kernel: Kernel) -> ClaudeAgentOptions:
    """The options with hooks by which every tool call goes through the ledger.

    Args:
        options: its own hooks stay.
    """
    hooks = dict(options.hooks or {})
    ours = {"PreToolUse": _asking(kernel)} | dict.fromkeys(
        ("PostToolUse", "PostToolUseFailure"), _recording(kernel)
    )
    for event, matcher in ours.items():
        hooks[event] = [*hooks.get(event, []), matcher]
    return replace(options, hooks=hooks)


def _asking(kernel: Kernel) -> HookMatcher:
    async def ask(given: Any, _use: str | None, _context: Any) -> Any:
        try:
            decision = await before(kernel, event_of(dict(given)))
        except Exception as problem:  # noqa: BLE001 - whatever it is, the tool must not run
            _log.warning("a tool does not run", problem=str(problem))
            decision = Deny(f"The tool did not run: {problem}")
        return decision_json(decision)

    return HookMatcher(hooks=[ask], timeout=kernel.patience_s + _MORE_S, on_failure="block")


def _recording(kernel: Kernel) -> HookMatcher:
    async def record(given: Any, use: str | None, _context: Any) -> Any:
        try:
            await after(kernel, event_of(dict(given)))
        except Exception as problem:  # noqa: BLE001 - the tool has run; its call ends in doubt
            _log.warning("a result is not recorded", use=use, problem=str(problem))
        return {}

    return HookMatcher(hooks=[record], timeout=_MORE_S)
