"""What every operation keeps: the shapes that it declares, the values that it accepts,
the gradients that are wanted, and the arrays that it computes with."""
