"""PyTorch's ``transpose`` of sender and receiver."""


def operator(x):
    return x.transpose(0, 1)
