"""What the papers propose and measure and no query uses: policies, cost models and simulators."""
