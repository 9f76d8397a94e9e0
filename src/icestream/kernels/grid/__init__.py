"""Window aggregates on a grid of panes: running groups (`groups`), many slides (`strides`)."""
