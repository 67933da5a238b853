"""The values of SQL92 filters: how parts of an expression are compared and combined; sql92_evaluation.pyx says how."""

from collections.abc import Iterable

class Filter:
    """A compiled expression, an array of operations. ``sql92.compile_filter`` makes one; one thread asks it.

    Each ``add_`` method adds one operation and returns its number; operands are numbers of operations before it.

    Attributes:
        text: The expression.
        steps: Comparisons, connections, and TRUE, FALSE and NULL in these, that one message may take: readers bound
            their work by it.
    """

    text: str
    steps: int
    def __init__(self, text: str) -> None: ...
    def matches(self, properties: bytes) -> bool:
        """Whether a message with these encoded properties passes; one whose values cannot be compared does not."""

    def add_constant(self, value: str | float | None) -> int:
        """Add a literal: text, number of at most 64 bits, truth value, or null."""

    def add_property(self, name: str) -> int:
        """Add a property: a text, or null where a message has none."""

    def add_any(self, operands: list[int]) -> int:
        """Add OR: true if one is; else null if one is."""

    def add_all(self, operands: list[int]) -> int:
        """Add AND: false if one is; else null if one is."""

    def add_not(self, operand: int) -> int:
        """Add NOT; null stays null."""

    def add_never_true(self, operand: int) -> int:
        """Add a bare property where a truth value is wanted: it is a text, so never true."""

    def add_minus(self, operand: int) -> int:
        """Add a sign before something that is no literal; a text has no negative."""

    def add_null_test(self, operand: int, *, negated: bool) -> int:
        """Add IS NULL or IS NOT NULL: the one test that is never null."""

    def add_equality(self, first: int, second: int, *, negated: bool) -> int:
        """Add ``=`` or ``<>``. Two missing properties are equal, as in RocketMQ."""

    def add_order(self, sign: str, first: int, second: int) -> int:
        """Add one of the four inequalities; two texts are read as decimals."""

    def add_membership(self, operand: int, choices: Iterable[str], *, negated: bool) -> int:
        """Add IN or NOT IN, of a property."""

    def add_text_test(self, test: str, operand: int, wanted: str, *, negated: bool) -> int:
        """Add CONTAINS, STARTSWITH or ENDSWITH, of a property.

        Neither it nor its negation is true of a missing property, or of an empty text.
        """

    def finish(self, root: int, steps: int) -> None:
        """Say which operation is the whole expression; nothing is added then."""
