"""Explanations and reports as people look at them: on a terminal, as drawings, as one page."""
