"""Plans of joins: definition (`multi_join`), `tree`, `order` and `cost`."""
