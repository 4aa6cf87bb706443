"""Histories for OpenAI Responses: one flat list of items, none nested in a message."""

from ayes.projections.formats.openai_responses.check import check
from ayes.projections.formats.openai_responses.write import write

__all__ = ["check", "write"]
