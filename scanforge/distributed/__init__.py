"""One sequence over many devices: time is split over the ranks of a `torch.distributed` group."""

from scanforge.distributed.before import before, place
from scanforge.distributed.forms import last_form
from scanforge.distributed.scans import scan

__all__ = ["before", "last_form", "place", "scan"]
