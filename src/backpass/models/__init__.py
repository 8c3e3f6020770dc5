"""Whole networks, from tokens to the gradient of every parameter, without autograd.

A model is a module of this folder with

- ``Config``, a frozen dataclass; ``Config.preset("gpt2")`` is a published model's, and
  ``Config.from_hugging_face(json)`` reads a ``config.json``;
- ``parameter_shapes(config)``, the names and shapes of the parameters;
- ``forward(parameters, tokens, targets, *, config)``, which returns ``(loss, saved)``;
- ``backward(saved)``, which returns the gradients.

The parameters are a mapping from Hugging Face's names to arrays, such as a
``state_dict`` or what ``safetensors`` loads. The prefix ``transformer.`` or ``model.``,
which Hugging Face's models with a head give the names, may be missing. A tied
``lm_head.weight`` may be missing too; if it is there, it must be equal to the token
embedding's table. Old buffers of masks and frequencies are ignored. Entries that are
missing, unknown, or of the wrong shape raise one ValueError, which names them all. The
arrays are never modified.

``tokens[*, s]`` and ``targets[*, s]`` are integers. ``targets[…, i]`` is the token to
predict at position i, so it is usually token i + 1; −100 is ignored. The loss is the
mean of the cross-entropies over the other targets.

The gradients are a dict from the names of the parameters, as they were given, to arrays
of the same shapes. A tied weight occurs once, under the name of the table, with the sum
of both gradients. ``forward(…, wanted=names)`` names the parameters to train: the
gradients of the others are not computed and are absent. ``flash`` and ``chunked``
choose what is saved, not what is computed: by default neither the weights of attention
nor the scores ``[*, s, V]`` are saved. ``kernels=backpass.kernels`` runs the Triton
kernels of norms, rotations, flash attention, feed-forward blocks, and the loss, on a
CUDA device; nothing else changes. ``backward(saved, scale=factor)`` returns the
gradients of the loss times a factor.

``encoder`` is a stack of layers with neither tokens nor a loss. Its ``forward`` maps
rows ``x[*, s, h]`` to ``y[*, s, h]``, and ``backward(dy, saved)`` returns ``dx`` and
the gradients. ``seq2seq`` is an encoder and a decoder, with the same interface for two
inputs. The parameters of both have the names of PyTorch's modules, without a prefix.

A model only composes operations and layers, which ``backpass.models.layers`` describes.
``stacks`` runs them one after the other and back; ``language_model`` adds the table of
tokens and the output head. A family, such as ``gpt2``, says only what is its own.
``backward`` frees what each layer saved as soon as it has used it, so it can run once.
"""

__all__ = ["encoder", "gpt2", "layers", "llama", "seq2seq"]
