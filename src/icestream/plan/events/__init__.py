"""Plans over events with lifetimes: graphs of nodes (`queries`) and the `dataflow` they become."""
