"""Plans of joins: definition (`multi_join`), `tree` and `order` with its costs."""
