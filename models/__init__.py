"""Layers written as scanforge declarations: each module holds a declaration and a thin `nn.Module`."""

__all__: list[str] = []
