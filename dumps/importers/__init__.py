"""Recordings in other formats, read strictly: what a file holds, under the names it gives. What the names mean is not known here."""

from .files import Foreign, read_npz, read_safetensors
from .strata import Strata, open_strata
from .tap_records import TapRecord, read_tap_records

__all__ = ["Foreign", "Strata", "TapRecord", "open_strata", "read_npz", "read_safetensors", "read_tap_records"]
