"""The claims of one text."""

PARTS = {
    "program": "What the notes announce",
    "forward_code": "The program's forward",
    "backward_code": "The program's backward",
    "derivatives": "Derivatives and gradients",
    "values_and_weights": "Values and weights",
    "normalisations": "Simplex, sphere, and softmax",
    "properties": "Multiples and shifts of a row",
    "score_gradients": "The gradient of the scores",
    "queries_and_keys": "Queries and keys",
}
