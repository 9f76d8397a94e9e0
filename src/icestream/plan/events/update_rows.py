"""What mode `update` writes of a query: the row that holds for each key that changed, as Spark.

Idea: a row replaces that of its key, and nothing says that a key is gone. So the mode is for rows
that are never withdrawn: answers of groups that always have one once they had one, because the
events they read stay or because each of these is an answer that stays, of a finer group; and rows
that are told once and never taken back, such as pairs of a join, which are those of mode `append`.
What reads rows of windows follows them while they are open if no row can then be withdrawn, as in
mode `now`, and reads them when they are final otherwise. A filter behind the answers drops rows
without a word, as in Spark.

Invariants:
1. Rows of a version are those that Spark writes for the same batch
   (`test_oracle_update_writes_what_spark_writes`).
2. The last row of each key is that of the table in mode `now`
   (`test_oracle_every_kind_of_window_composes_as_in_sql`).
3. Whatever could be withdrawn is refused (`test_update_refuses_what_it_cannot_say`).
"""

from __future__ import annotations

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import Filtering, Projecting
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes
from icestream.operators.lifetimes.answers import LifetimeAggregate
from icestream.operators.lifetimes.join import StreamJoin
from icestream.operators.lifetimes.open_windows import OpenWindows
from icestream.operators.lifetimes.session_copies import SessionCopies
from icestream.operators.lifetimes.top import TopK
from icestream.operators.lifetimes.until_next import UntilNext
from icestream.plan.events.current_rows import as_table, ends, group_key
from icestream.plan.events.final_answers import with_final_plans
from icestream.plan.nodes.events import Applied, Entered, Final, Left, Mapped, Node, only_grows


def update_rows(node: Node) -> tuple[Node, str]:
    """Return the node whose rows mode `update` writes, and how: by key, or once as in `append`."""
    for each in (as_table(node), node):
        if update_key(each) and _always_answers(each):
            return each, "update"
    ((once, _),) = with_final_plans(((node, "append"),))
    answers = _answers(node)
    operator = answers.operator if isinstance(answers, Applied) else None
    if only_grows(once) and not isinstance(operator, LifetimeAggregate | TopK):
        return node, "append"
    msg = (
        "output mode 'update' writes the rows that hold for keys that changed, and cannot say that "
        f"one is gone, as {_withdrawn(answers)} would need: write outputMode('now') for a table by "
        "key that drops them too, or 'changes' for every change"
    )
    raise DefinitionError(msg)


def update_key(node: Node) -> tuple[str, ...]:
    """Return the columns that identify answers, also if the rows no longer show them."""
    return group_key(node) or group_key(without_maps(node)) or ()


def without_maps(node: Node) -> Node:
    """Return a node before its rows are filtered and projected, which may follow the last step."""
    while isinstance(node, Mapped) and isinstance(node.change, Filtering | Projecting):
        node = node.before
    return node


def _answers(node: Node) -> Node:
    """Return what makes the rows of a node."""
    match node := without_maps(node):
        case Left():
            return _answers(node.before)
        case Applied(operator=OpenWindows()):
            return _answers(node.inputs[0])
    return node


def _withdrawn(answers: Node) -> str:
    """Return what may lose rows, for the message."""
    operator = answers.operator if isinstance(answers, Applied) else None
    if isinstance(operator, TopK) and operator.k > 1:
        return "a top of several rows"
    if isinstance(operator, LifetimeAggregate | TopK):
        assert isinstance(answers, Applied)
        if any(map(_has_sessions, answers.inputs)):
            return "a session that grows or is joined with another (Spark has none here either)"
        return "an answer over events that end or are taken back"
    return "a result whose rows may be taken back (outer joins, differences, versions of rows)"


def _has_sessions(node: Node) -> bool:
    while isinstance(node, Entered | Left | Mapped):
        node = node.before
    return isinstance(node, Applied) and isinstance(node.operator, SessionCopies)


def _always_answers(node: Node) -> bool:
    """Return whether each group that has had an answer has one, whatever is filtered behind."""
    node = _answers(node)
    if not isinstance(node, Applied) or node.scope is None:
        return False
    match node.operator:
        case TopK(k=count) if count > 1:
            return False
        case LifetimeAggregate() | TopK():
            keys = frozenset(node.scope.keys)
            return all(_never_empty(each, keys) for each in node.inputs)
        case StreamJoin():
            return all(map(_always_answers, node.inputs))
    return False


def _never_empty(node: Node, keys: frozenset[str]) -> bool:
    """Return whether a group by some columns of a node keeps an event once it has one."""
    if only_grows(node):
        return not ends(node)
    match node:
        case Mapped(change=Filtering()):
            return False
        case Mapped(change=AlterLifetimes()) if ends(node):
            return False
        case Mapped(change=Projecting(projection)):
            return _never_empty(node.before, projection.read_for(keys))
        case Mapped() | Entered() | Left() | Final():
            # columns that a map adds are made of the time of an event
            return _never_empty(node.before, keys & {*node.before.payload.names})
        case Applied(operator=UntilNext()) if node.scope is not None:
            return keys == {*node.scope.keys} and all(map(only_grows, node.inputs))
        case Applied() if node.scope is not None:
            return keys <= {*node.scope.keys} and _always_answers(node)
    return False
