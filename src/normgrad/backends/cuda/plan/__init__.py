"""Plans: which launches compute a request, and every size of them. No address, no GPU."""
