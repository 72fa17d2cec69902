"""`fedprivacy epsilon` and `fedprivacy sigma`: what a training costs, and the noise that a budget needs. No data."""
