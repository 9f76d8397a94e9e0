"""What every layer uses: errors, clocks, times, units, array types, places in a text."""
