"""What schedules are made of: tiles, copies, exchanges between blocks, joins."""
