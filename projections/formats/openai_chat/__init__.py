"""Histories for OpenAI Chat Completions, and for the many servers that speak it."""

from ayes.projections.formats.openai_chat.check import check
from ayes.projections.formats.openai_chat.write import write

__all__ = ["check", "write"]
