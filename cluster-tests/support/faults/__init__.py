"""What may go wrong, as data: one vocabulary for simulated rings and for real clusters."""
