"""A version of a query over windows: events folded or kept, and the tasks that compute them."""
