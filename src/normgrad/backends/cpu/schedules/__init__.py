"""What tasks compute, in Numba; `vectors` is the language they are written in."""
