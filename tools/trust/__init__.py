"""The trust model, enforced: no stage can quietly weaken another. CONTRIBUTING.md says the rules, this runs them.

    uv run python -m tools.trust static      # everything that needs no process of its own: seconds
    uv run python -m tools.trust --help

Standard library alone, so that a base revision's copy can judge a change without installing anything.
"""
