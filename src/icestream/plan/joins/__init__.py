"""Plans of joins: their tree, their order, their cost, what spills."""
