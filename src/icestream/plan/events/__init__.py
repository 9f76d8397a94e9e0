"""Plans over events with lifetimes: graphs of nodes and the dataflows they become."""
