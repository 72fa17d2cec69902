"""Attacks that people understand: who was in the data, what did the model memorise, what does one update show.

They are a report for people and decide nothing. An attack that succeeds proves a risk. One that fails proves nothing:
the guarantee is epsilon, and what checks the code behind it are the gates.
"""
