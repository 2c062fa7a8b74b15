"""One folder an op, or a tight family: op.py the public function, xla.py and pallas_*.py its implementations, config.py block sizes."""
