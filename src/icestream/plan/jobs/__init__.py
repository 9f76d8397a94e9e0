"""Plans of map, compute and consolidate: the graph (`building`), `windows`, fusion (`planning`)."""
