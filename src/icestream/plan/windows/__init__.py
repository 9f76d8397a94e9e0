"""Windows and lifetimes as pure data and arithmetic: `grid`, `frame`, `session`, `lifetimes`."""
