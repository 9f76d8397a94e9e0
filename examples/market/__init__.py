"""Volume-weighted average prices of a stock market, over the last hour, with every trade."""
