"""Methods that compute clipped sums of gradients, and the choice among them."""
