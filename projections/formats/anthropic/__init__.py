"""Histories for Anthropic Messages: the writer and the checker."""

from ayes.projections.formats.anthropic.check import check
from ayes.projections.formats.anthropic.write import write

__all__ = ["check", "write"]
