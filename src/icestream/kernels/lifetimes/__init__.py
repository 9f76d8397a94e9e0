"""Events with lifetimes: pairs that share an instant, sweeps over edges, best rows by instant."""
