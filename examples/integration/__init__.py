"""Prices, volumes and reviews of stocks, joined as they arrive."""
