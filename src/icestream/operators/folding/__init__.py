"""Events folded into rows of partial aggregates: fields, columns, entry tables, sorted runs."""
