"""The names of the lower-case Greek letters in LaTeX, as alternatives of a pattern."""

LOWER = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi"
    "|pi|rho|sigma|tau|upsilon|phi|varphi|chi|psi|omega"
)
