"""The ring member as a state machine: no I/O, no clock, no chance. Read `member` first."""
