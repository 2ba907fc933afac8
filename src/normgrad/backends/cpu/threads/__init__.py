"""How several threads do the tasks of a call: torch's, or helpers of our own."""
