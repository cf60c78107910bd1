"""Text from programs: skeletons are written by hand, expressions are generated."""
