"""Checks of models and losses for a sound private gradient: problems and their remedies."""
