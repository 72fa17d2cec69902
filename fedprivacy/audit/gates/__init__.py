"""The gates: checks of the client that really runs, each of which passes or fails.

Every gate is a function `check(audited) -> Gate`. It asks the real ClientApp and judges by what left it.
"""
