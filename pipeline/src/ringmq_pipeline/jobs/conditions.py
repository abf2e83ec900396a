"""Whether a condition chooses the same rows whenever it is asked.

A replay that is resumed numbers the rows that its condition chooses. With others than before, rows
would have the numbers of those that are published, and the broker would trim them.

Judged is the condition as Spark has analysed it, so a text `'now'` is a text, unless Spark takes
it for a time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ringmq_pipeline.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark casts these to a time of the run.
_SPECIAL: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_TIMES: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
# Of a literal with its type, such as `DATE 'today'`: Spark's parser makes it a constant.
_TYPES: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})


def refuse_unsteady(frame: DataFrame, where: str) -> None:
    """Raises `JobError` if the condition asks for the time, for the session's user or zone, or for
    chance, also in a subquery."""
    jvm: Any = frame.sparkSession._jvm
    plan: Any = frame.where(where)._jdf.queryExecution().analyzed()
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    is_steady = plan.deterministic() and not plan.containsPattern(patterns.CURRENT_LIKE())
    if not is_steady or _casts_special(plan.expressions()) or _names_special(jvm, where):
        raise JobError(
            f"the condition {where!r} may choose other rows when the replay is resumed, and the "
            "broker would take these for repeats: it must not depend on the time of the run or on "
            "chance; write the time that is meant as a constant"
        )


def _casts_special(expressions: Any) -> bool:
    return any(
        child.nodeName() == "Literal"
        and child.dataType().typeName() == "string"
        and _SPECIAL.match(child.toString())
        for node in _nodes(expressions)
        if node.dataType().typeName() in _TIMES
        for child in _listed(node.children())
    )


def _nodes(expressions: Any) -> Iterator[Any]:
    for expression in _listed(expressions):
        yield expression
        yield from _nodes(expression.children())


def _listed(found: Any) -> Iterator[Any]:
    """Of a sequence of Scala's."""
    return map(found.apply, range(found.size()))


def _names_special(jvm: Any, where: str) -> bool:
    """Whether it has such a literal with its type: no plan shows its text."""
    text = jvm.org.antlr.v4.runtime.CharStreams.fromString(where)
    tokens = jvm.org.apache.spark.sql.catalyst.parser.SqlBaseLexer(text).getAllTokens()
    # The others are blanks and comments.
    words = [token.getText() for token in tokens if token.getChannel() == 0]
    return any(
        kind.upper() in _TYPES and value[0] in "'\"" and _SPECIAL.match(value[1:])
        for kind, value in itertools.pairwise(words)
    )
