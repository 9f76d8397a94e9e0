"""Which operators share a component, and which components share a task, as pure decisions.

`operator_graph` describes a job, `fusion` chooses components before it starts, `refusion` and
`running_fusion` adapt them while it runs.
"""
