"""The words by which prose says what a line rests on.

They say which form an input has, that a line is not exact, or that it is not claimed.
"""

from __future__ import annotations

import re

# What each form is, for one name and for several, and the words that say so.
IS = {
    "zero": ("{} = 0", r"\bzero|\bvanish|\bwithout\b|\borigin\b"),
    "one": (
        "{} = 1",
        r"\bone\b(?=\W*\Z|[,.:;)])|\bunity\b|\bunit (?:variance|norm|temperature|scale|weight"
        r"|gain|slope)\b",
    ),
    "constant": ("all elements of {} are equal", r"\bequal|\bsame\b|\bconstant|\buniform"),
    "binary": (
        "the elements of {} are 0 or 1",
        r"\bbinary|\bbernoulli|\bindicator|\bboolean|\bmasks?\b"
        r"|\b(?:zeros?|0) (?:or|and) (?:ones?|1)\b|\\\{\s*0\s*,\s*1\s*\\\}",
    ),
    "signs": (
        "the elements of {} are 1 or -1",
        r"\bsigns?\b|\\pm|±|\bplus or minus\b|\\\{\s*[-+]?\s*1\s*,\s*[-+]?\s*1\s*\\\}",
    ),
    "unit": (
        "{} has length 1",
        r"\bunit\b|\bnormali[sz]ed|\b(?:norm|length) (?:one|1|\$1)|\bspheres?\b",
    ),
    "centred": (
        "the elements of {} sum to 0",
        r"\bcent(?:er|re)d\b|\b(?:zero[- ]mean|mean (?:is |of |equal to )?(?:zero|0|\$0))\b|\bsums? to (?:zero|0|\$0)",
    ),
    "one-hot": (
        "{} is one-hot",
        r"\bone[- ]hot\b|\bindicator|\b1-of-|\bstandard basis\b|\bcategor|\bclass",
    ),
    "symmetric": (
        r"{0} = {0}^\top",
        r"\bsymmetr|\bhermitian|\b(?:positive|negative)[- ](?:semi[- ]?)?definite|\bspd\b"
        r"|\bcovariance|\bhessian|\bprecision|\bkernel|\bgram\b|\blaplacian|\bmetric\b",
    ),
    "skew": (r"{0} = -{0}^\top", r"\bskew|\banti-?symmetric"),
    "diagonal": ("{} is diagonal", r"\bdiagonal|\bisotropic"),
    "triangular": ("{} is triangular", r"\btriangular|\bcholesky"),
    "orthogonal": ("{} is orthogonal", r"\borthogonal|\borthonormal|\bunitary|\brotat|\bisometr|\bpermut"),
    "orthonormal": ("{} has orthonormal columns or rows", r"\borthonormal|\borthogonal"),
    "projection": ("{} is a projection", r"\bproject|\bidempotent"),
    "stochastic": (
        "the rows or columns of {} sum to 1",
        r"\bstochastic|\bsums? (?:up )?to (?:one|1|\$1)|\bdistribution|\bprobabilit"
        r"|\bnormali[sz]ed|\btransition",
    ),
    "rank one": ("{} has rank 1", r"\brank[- ](?:one|1|\$1)|\bouter product"),
    "equal": ("{} = {}", r"\bequal|\bsame\b|\bidentical|\btied\b|\bshare|\bcoincide"),
    "transposes": (r"{} = {}^\top", r"\btied\b|\btranspose"),
    "inverses": ("{} is the inverse of {}", r"\binverse"),
    "commuting": ("{} and {} commute", r"\bcommut|\bsimultaneous|\bcirculant"),
    "perpendicular": (
        "{} and {} are orthogonal",
        r"\borthogonal|\borthonormal|\bperpendicular|\buncorrelated",
    ),
    "eigenpair": ("{1} is an eigenvector of {0} with eigenvalue {2}", r"\beigen"),
}  # fmt: skip
WORDS = {kind: re.compile(words, re.I) for kind, (_, words) in IS.items()}
# A decomposition into matrices of this form, which the text need not name again.
DECOMPOSED = re.compile(
    r"\bsingular (?:values?|vectors?)\b|\bsvd\b|\beigen-?(?:decomposition|basis)|\bspectral"
    r"|\bqr\b|\bprincipal (?:component|ax)|\bpca\b",
    re.I,
)
OF_SEVERAL = (
    "equal", "transposes", "inverses", "commuting", "perpendicular", "eigenpair",
)  # fmt: skip
# Forms in which a slip may be right too: their words count near the display alone.
POOR = ("zero", "one", "equal", "constant")

# Words beside a display that say that its equation is not exact, or not claimed.
INEXACT = re.compile(
    r"\bto (?:first|second|leading|lowest)[- ]order\b|\bhigher[- ](?:order )?terms?\b"
    r"|\b(?:first|second|leading)[- ]order (?:taylor|approx|expan|accura)\w*"
    r"|\bneglect\w*|\babsorb\w*|\bapprox\w*|\blineari[sz]\w*|\btaylor\b|\broughly\b|\bmodulo\b"
    r"|\b(?:ignor|drop|omit|discard)(?:s|p?ed|ted|ting|p?ing)?\b(?=[^.]*\b(?:terms?|constants?"
    r"|factors?|parts?|contribution|dependen\w+|normali\w+|effects?|temperature)\b)"
    r"|\b(?:small|large|tiny)\b(?=\s+(?:\$|\\\(|enough|values?|steps?|angles?|perturbations?"
    r"|changes?|arguments?|inputs?|times?|deviations?))"
    r"|\b(?:is|are|be|becomes?) (?:\w+ )?(?:small|large|tiny|negligible)\b|\binfinitesimal"
    r"|\blimit\b|\basymptotic\w*|\bproportional\b|\badditive constants?\b|\bunnormali[sz]ed\b"
    r"|\bup to (?:an?|the|some|irrelevant|additive|multiplicative|proportionality|terms?"
    r"|constants?|factors?|scal\w+|signs?|first|second|order)\b"
    r"|\bwould (?:become|get|have|give|equal|lead|yield|reduce)\b"
    r"|\\to\s*(?:0|\\infty)|\\approx|\\propto|\\ll(?![a-zA-Z])|\\gg(?![a-zA-Z])",
    re.I,
)
DENIED = re.compile(
    r"\b(?:wrong|incorrect|mistake\w*|erroneous\w*|disprove\w*|fallac\w+|pitfall"
    r"|counterexample|tempting|fails?)\b|\bfalse\b(?! (?:positive|negative))"
    r"|\bna[iï]ve(?: (?:rule|guess|idea|answer|formula|attempt)\b|\b(?! \w)| update\b(?! \w))"
    r"|\b(?:not|never|n't) (?:\w+ )?(?:true|correct|hold|equal|valid|the case)\b",
    re.I,
)
NUMERIC = re.compile(
    r"\b(?:examples?|numeric\w*|numbers?|evaluat\w+|plug\w*|substitut\w+|values?|concrete\w*"
    r"|initial\w*|iterations?|epochs?|steps?|instance)\b",
    re.I,
)
# Sizes in which a line may be right, and the words that say so near the display.
_OF = (
    r"(?:dimension\w*|samples?|examples?|rows?|tokens?|class(?:es)?|inputs?|units?|points?"
    r"|elements?|entr(?:y|ies)|features?|heads?|variables?|neurons?|layers?)"
)
SIZES = {
    1: re.compile(rf"\b(?:single|scalar|univariate|one[- ]{_OF})\b|\b1[- ]?D\b", re.I),
    2: re.compile(rf"\b(?:two[- ]{_OF}|of two|bivariate)\b|\b2[- ]?D\b", re.I),
    3: re.compile(rf"\b(?:three[- ]{_OF}|of three)\b|\b3[- ]?D\b", re.I),
}
SIGNED = re.compile(
    r"\b(?:non-?)?(?:positive|negative)\b|\b(?:in)?active\b|\bcases?\b|[<>]|\bfires?\b"
    r"|\b(?:above|below|inside|outside|within|beyond|exceeds?|greater|less|larger|smaller)\b"
    r"|\b(?:regime|range|region|interval|branch|threshold|saturat\w+|clip\w*|sub-?gradient)\b"
    r"|\\[lg](?:eq?|t|eqslant)(?![a-zA-Z])|\bunits?\b|\bwhen\b|\bif\b|\bwhere\b",
    re.I,
)
CLAUSE = re.compile(
    r"\b(?:since|because|if|when|whenever|assum\w+|suppos\w+|provided|given|let|where)\b",
    re.I,
)
# Properties that make a line have a meaning, and no wrong one right.
GENERAL = re.compile(
    r"\b(?:invertible|non-?singular|regular|full rank|(?:twice |continuously )?differentiable"
    r"|smooth|continuous|convex|matri(?:x|ces)|vectors?|columns?|scalars?|functions?)\b"
    r"|\\in\s*\\mathbb",
    re.I,
)
# Words by which a sentence introduces its names.
INTRODUCED = re.compile(
    r"\b(?:let|denote|consider|call|suppose)\b[^.$]*\$([^$=]{1,12})\$",
    re.I,
)
THEOREM = re.compile(
    r"\b(?:theorem|lemma|identit(?:y|ies)|proposition|for (?:any|all) (?:two )?(?:\w+ )?"
    r"(?:matri(?:x|ces)|vectors?)|in general|general (?:rule|result|fact))\b",
    re.I,
)
