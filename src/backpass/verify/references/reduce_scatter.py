"""A sum over the ranks that send."""


def operator(x):
    return x.sum(0)
