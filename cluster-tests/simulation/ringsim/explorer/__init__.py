"""Every interleaving of a small ring; `search` has the events, and the list of those left out."""
