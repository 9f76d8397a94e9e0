"""Plans of map, compute and consolidate: operators, windows, fusion."""
