"""An operator whose combine and apply disagree, for tests of what tells."""

from __future__ import annotations

import scanforge as sf


class Half(sf.Operator):
    """Not associative."""

    x = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Half(x=0.5 * self.x + later.x)

    def apply(self, h):
        return 0.5 * h + self.x
