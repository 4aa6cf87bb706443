"""Histories for Gemini's `generateContent`: the writer, the checker and the reader."""

from ayes.projections.formats.gemini.check import check
from ayes.projections.formats.gemini.parts import FOREIGN
from ayes.projections.formats.gemini.read import read
from ayes.projections.formats.gemini.write import write

__all__ = ["FOREIGN", "check", "read", "write"]
