"""How fast is it, and is it right? Rows, peers, timing and reports for ``normgrad bench``."""
