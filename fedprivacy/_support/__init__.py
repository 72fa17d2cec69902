"""Support that any program needs and Python lacks: durable writes, signatures, failpoints."""
