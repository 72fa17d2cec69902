"""The baseline in a simulation: rounds without privacy, which charge nothing and which no deployed client can join."""
