"""Histories for Gemini's `generateContent`: the writer and the checker."""

from ayes.projections.formats.gemini.check import check
from ayes.projections.formats.gemini.parts import FOREIGN
from ayes.projections.formats.gemini.write import write

__all__ = ["FOREIGN", "check", "write"]
