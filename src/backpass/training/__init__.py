"""What a training step needs beside a model's forward and backward, and runs of steps.

- ``batches`` draws windows of a text, and ``texts`` reads the text;
- ``accumulation`` averages the gradients of several micro-batches;
- ``clipping`` measures and bounds their norm;
- ``scaling`` scales the loss, so that gradients in float16 do not underflow;
- ``formats`` describes floating-point formats by their bits, and rounds to them;
- ``schedule`` gives the learning rate of each step;
- ``adamw`` updates the parameters, or ``muon`` the matrices among them, and ``initial``
  draws the first ones;
- ``run`` makes these steps and returns a record of each;
- ``states`` stores a run on the disk, in Hugging Face's form too;
- ``sampling`` lets a trained model write.

Parameters and gradients are mappings from names to arrays, as in ``backpass.models``:
NumPy arrays or PyTorch tensors. Nothing here records a graph, and the arrays that it is
given are not modified, except those of AdamW's own state, and with ``in_place`` those
of the parameters or of the gradients. A step is::

    rate = schedule.rate(step, peak=1e-3, warmup=100, steps=1000)
    tokens, targets = batches.windows(text, batch=8, length=64, seed=0, step=step)
    loss, saved = gpt2.forward(parameters, tokens, targets, config=config)
    gradients, norm = clipping.clip(gpt2.backward(saved), 1.0)
    adamw.update(parameters, gradients, state, lr=rate)

``backpass train`` and ``backpass sample`` are these modules on the command line.
"""

__all__ = [
    "accumulation",
    "adamw",
    "batches",
    "clipping",
    "formats",
    "initial",
    "muon",
    "run",
    "sampling",
    "scaling",
    "schedule",
    "states",
    "texts",
]
