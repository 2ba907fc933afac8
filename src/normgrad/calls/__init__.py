"""What happens between a public function and a backend: read, look up, allocate, run."""
