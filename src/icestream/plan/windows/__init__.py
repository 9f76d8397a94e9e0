"""Windows and lifetimes as pure data and arithmetic: grids, frames, sessions."""
