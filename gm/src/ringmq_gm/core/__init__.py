"""The ring member as a state machine: no I/O, no clock, no chance. `member` is the entrance."""
