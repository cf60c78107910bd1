"""How fast the scans are, and the figures and tables drawn from it."""
