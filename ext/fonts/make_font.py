"""Makes backpass_math.woff2 from Latin Modern Math: the characters that the book's formulas use and their neighbours, with
a few measures changed to suit browsers.

    python make_font.py latinmodern-math.otf      needs fonttools and brotli; TeX distributions have the font

Run it when `tests/book/test_mathematics.py` names a character that the font lacks, after adding it to CHARACTERS.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fontTools.pens.boundsPen import BoundsPen
from fontTools.pens.t2CharStringPen import T2CharStringPen
from fontTools.pens.transformPen import TransformPen
from fontTools.subset import Options, Subsetter, parse_unicodes
from fontTools.ttLib import TTFont

NAME = "Backpass Math"
CHARACTERS = (
    "20-7E A0 B1 B7 D7 F7 131 237 2C6 2C7 2D8 2D9 2DC 300-304 307 308 30C 338 391-3A9 3B1-3C9 3D1 3D5 3D6 3F1 3F5 "
    "2013 2016 2019 2020 2022 2026 2032-2034 203E 2044 2061 20D7 2102 210B 210E 2110 2112 2113 2115 211A 211B 211D 2124 "
    "212C 2130 2131 2133 2190-2194 21A6 21D0 21D2 21D4 2200 2202 2203 2205 2207-2209 220F 2211-2213 2215-221A 221D 221E "
    "2223 2225 2227-222B 2234 2235 223C 2243 2245 2248 2260 2261 2264 2265 226A 226B 2282 2286 2295 2297 2299 22A4 22A5 22C5 "
    "22EE-22F1 2308-230B 23DC-23DF 27E8 27E9 27F5-27F9 27FC 2A00-2A02 1D400-1D467 1D49C-1D4B5 1D538-1D550 1D6A4 1D6A5 "
    "1D6E2-1D71B 1D7CF 1D7D8 1D7D9"
)
BEARING = 45  # units beside the ink of a tall delimiter


def shortened(font: TTFont) -> None:
    """Keep the characters, with the sizes of each delimiter and the forms for indices."""
    options = Options(
        layout_features=["ssty", "dtls"], hinting=False, desubroutinize=True, drop_tables=["FFTM"]
    )
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=parse_unicodes(CHARACTERS.replace(" ", ",")))
    subsetter.subset(font)


def narrow_delimiters(font: TTFont) -> None:
    """Remove the space that is part of tall delimiters. Chromium makes each size as wide as the widest of them."""
    variants = font["MATH"].table.MathVariants
    glyphs, widths = font.getGlyphSet(), font["hmtx"].metrics
    for base, construction in zip(
        variants.VertGlyphCoverage.glyphs, variants.VertGlyphConstruction, strict=True
    ):
        if not is_delimiter(font, base):
            continue
        # The parts of an assembled delimiter keep their places beside each other.
        groups = [{record.VariantGlyph} - {base} for record in construction.MathGlyphVariantRecord]
        if construction.GlyphAssembly:
            groups.append({part.glyph for part in construction.GlyphAssembly.PartRecords})
        for names in filter(None, groups):
            bounds = [bounds_of(glyphs[name]) for name in names]
            left, right = min(each[0] for each in bounds), max(each[2] for each in bounds)
            width = round(right - left) + 2 * BEARING
            for name in names:
                moved = T2CharStringPen(width, glyphs)
                glyphs[name].draw(TransformPen(moved, (1, 0, 0, 1, BEARING - left, 0)))
                top, at = font["CFF "].cff.topDictIndex[0], font["CFF "].cff.topDictIndex[0].CharStrings
                at[name] = moved.getCharString(at[name].private, top.GlobalSubrs)
                widths[name] = (width, round(bounds_of(glyphs[name])[0]))


def bounds_of(glyph) -> tuple[float, float, float, float]:
    pen = BoundsPen(None)
    glyph.draw(pen)
    return pen.bounds


def is_delimiter(font: TTFont, glyph: str) -> bool:
    return any(font.getBestCmap().get(ord(sign)) == glyph for sign in "()[]{}|‖⟨⟩⌈⌉⌊⌋")


def lower_scripts(font: TTFont) -> None:
    """TeX places the indices of single letters at one height. Browsers treat a letter as they treat a tall bracket, so that
    y and x would have theirs at different heights."""
    constants = font["MATH"].table.MathConstants
    constants.SubscriptBaselineDropMin.Value = 40
    constants.SuperscriptBaselineDropMax.Value = 480


def rename(font: TTFont) -> None:
    """The licence asks for a name of its own for a font that was changed."""
    for record in font["name"].names:
        if record.nameID in (1, 3, 4, 6, 16):
            record.string = NAME.replace(" ", "") if record.nameID == 6 else NAME
    top = font["CFF "].cff
    top.fontNames[0] = NAME.replace(" ", "")
    top.topDictIndex[0].FullName = top.topDictIndex[0].FamilyName = NAME


def main() -> None:
    font = TTFont(sys.argv[1])
    shortened(font)
    for change in (narrow_delimiters, lower_scripts, rename):
        change(font)
    font.flavor = "woff2"
    font.save(Path(__file__).with_name("backpass_math.woff2"))


if __name__ == "__main__":
    main()
