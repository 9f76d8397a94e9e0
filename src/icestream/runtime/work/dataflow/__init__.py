"""A version of a dataflow: components in order, parcels between them, memory and spilling."""
