"""Session windows: stretches of a group's events in which no pause exceeds the gap."""
