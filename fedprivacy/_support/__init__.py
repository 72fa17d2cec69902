"""What any program needs and Python lacks: durable writes, signatures, points to fail at."""
