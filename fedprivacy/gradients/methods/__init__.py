"""Ways to compute clipped sums of gradients, and the choice among them."""
