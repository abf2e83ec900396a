"""Where views are agreed: one small linearizable store, with two engines behind it."""
