"""What can go wrong in a benchmark."""


class BenchError(Exception):
    """A measurement that must not become a figure: a program failed, or a condition of the case was not met."""
