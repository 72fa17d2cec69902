"""Tests of `fedprivacy.single`."""
