"""What every layer uses: errors, clocks, times, units, array types, errors in a text.

Each module is small and imports nothing of Icestream but its neighbours here.
"""
