"""A module that a method imports."""

rate = 0.5
