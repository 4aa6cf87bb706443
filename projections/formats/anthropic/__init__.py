"""Histories for Anthropic Messages: the writer, the checker and the reader."""

from ayes.projections.formats.anthropic.check import check
from ayes.projections.formats.anthropic.read import read
from ayes.projections.formats.anthropic.write import write

__all__ = ["check", "read", "write"]
