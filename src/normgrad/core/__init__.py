"""What a request is and what may be asked: no data, no arrays, no backend."""
