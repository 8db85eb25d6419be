"""Edits of a text before anything reads it: markup, signatures and quotes are removed, personal data are masked.

Only what is listed here is found. Names, postal addresses, account numbers of other kinds and numbers in words are
not. The time of each edit is linear in the length of the text. Cells of tables are fragments, in which
``<john@example.com>`` and ``a < b`` are text; so only tags of HTML are removed, by rules and not by a parser, as
``.html`` files are converted (:mod:`acclimate.data.conversion`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from html.entities import html5
from typing import Any

PLACEHOLDERS = ("[url]", "[email]", "[iban]", "[phone]")
"""What replaces personal data."""
_VERSION = 1  # increment when the same text is edited in another way
PASSES = 6
"""Passes until nothing changes; a text that still changes after them is no mail, and is not cleaned."""

BLOCKS = (
    "address article aside blockquote body br center dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 "
    "h5 h6 head header hr html legend li main nav ol option p pre section table tbody tfoot thead title tr ul"
)
BREAKS = frozenset(BLOCKS.split())
INLINE = (
    "a abbr acronym b base bdi bdo big button caption cite code col colgroup data del details dfn em font i iframe "
    "img input ins kbd label link mark meta meter object optgroup output picture progress q s samp script select "
    "small source span strike strong style sub summary sup svg td template textarea th time tt u var video wbr"
)
TAG = re.compile(
    rf"</?({'|'.join(f'{BLOCKS} {INLINE}'.split())}|[ovw]:\w{{1,20}})(?:\s[^<>]*|/)?>|<!(?:--|\[|doctype)[^<>]*>",
    re.IGNORECASE,
)
UNSHOWN = [
    (re.compile(rf"<{name}(?:\s[^<>]*)?>", re.I), re.compile(rf"</{name}>", re.I)) for name in ("script", "style")
]
ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

QUOTED = re.compile(r"\s{0,3}>+(?:\s|$|[^\W\d])")
ATTRIBUTION = re.compile(
    r"\s{0,3}\w\w .{8,200}\b(?:wrote|schrieb(?:en)?|a écrit|escribió|ha scritto|schreef|escreveu)\b.{0,60}:\s*$"
)
ORIGINAL = re.compile(
    r"\s{0,3}[-_]{2,40}\s{0,3}(?:Original Message|Ursprüngliche Nachricht|Originalnachricht|Message d'origine|"
    r"Mensaje original|Messaggio originale|Oorspronkelijk bericht)\s{0,3}[-_]{2,40}\s*$",
    re.IGNORECASE,
)
SENDER = re.compile(r"\s{0,3}\*?(?:From|Von|De|Da|Van):\*?\s{0,3}\S")
HEADER = re.compile(
    r"\s{0,3}\*?(?:Sent|Date|To|Cc|Subject|Gesendet|Datum|An|Betreff|Envoyé|À|Objet|Enviado|Para|Asunto|Inviato|A|"
    r"Oggetto|Verzonden|Aan|Onderwerp):"
)
DEVICE = re.compile(
    r"\s{0,3}(?:Sent from (?:my \w|Mail|Outlook|Yahoo)|Get Outlook for \w|Von meinem .{1,40} gesendet|"
    r"Gesendet von (?:mein|Mail|Outlook|Yahoo)|Envoyé de mon \w).{0,40}$"
)
CLOSING = re.compile(
    r"\s{0,3}(?:(?:(?:with |my )?(?:kind|best|warm|many) )?regards|best wishes|yours (?:sincerely|faithfully|truly)|"
    r"sincerely(?: yours)?|mit (?:freundlichen|besten|herzlichen|lieben|vielen) gr(?:ü|ue)(?:ß|ss)en|"
    r"(?:viele|beste|liebe|herzliche|freundliche|schöne) gr(?:ü|ue)(?:ß|ss)e|mfg|cordialement|bien à vous|"
    r"(?:un )?(?:cordial )?saludos?(?: cordiales)?|(?:cordiali|distinti) saluti|met vriendelijke groet(?:en)?|"
    r"atenciosamente)(?: aus \w{1,30})?(?:,[^.?!:]{0,40}|[.!])?\s*$",
    re.IGNORECASE,
)
DASHES = re.compile(r"(?:--|—) ?\r?$")
MAX_SIGNATURE, MAX_FOOTER = 12, 30
"""Lines with text from a closing on, which holds no whole sentence, and lines from two dashes on."""

URL = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.\-]{1,20}://[^\s<>\"']+")
SECRET = re.compile(
    r"://[^/\s@?#]+@|[?&#;][^=&\s?#;]{0,40}(?:token|secret|passw|pwd|key|sig|auth|session|sid|code|otp|jwt)"
    r"[^=&\s?#;]{0,40}=[^&\s]",
    re.IGNORECASE,
)
EMAIL = re.compile(r"(?<![\w.%+\-])[\w.%+\-]++@(?:[\w\-]++\.)+[^\W\d_]{2,}")
IBAN_LENGTHS = {
    entry[:2]: int(entry[2:])
    for entry in (
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 "
        "EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 "
        "KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 "
        "PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 "
        "VA22 VG24 XK20 YE30"
    ).split()
}
"""Characters of an IBAN by country (registry of SWIFT)."""
IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?:[ \-]?[A-Za-z0-9]){11,30}")
PHONE = re.compile(
    r"(?<![\w+./\-])(?P<word>(?:tel|telefon|telephone|phone|mobile|mobil|handy|cell|fax|fon)\b[.:]{0,2} {0,2})?"
    r"(?P<number>[+(]{0,2}[0-9][0-9 ()./\-]{5,60})",
    re.IGNORECASE,
)
MAX_PHONE = 26
"""Characters of a phone number."""
APART = re.compile(r"\. |[ ()./\-]{4}")
AMERICAN = re.compile(r"[2-9][0-9]{2}\)?[ .\-][0-9]{3}[ .\-][0-9]{4}")
BEGIN = re.compile(rf"(?:^| )(?=[+(]|0[0-9]|{AMERICAN.pattern})")
"""Where a phone number may begin that follows no word such as Tel.."""
DATE = re.compile(r"[0-3]?[0-9][./\-][01]?[0-9][./\-](?:[0-9]{2}){1,2}(?![0-9])")


@dataclass(frozen=True)
class TextEdits:
    """What is done to each text: nothing by default.

    Attributes:
        clean: What is removed: ``"html"``, ``"quotes"`` and ``"signatures"`` of mails.
        mask_personal: Whether personal data are replaced by :data:`PLACEHOLDERS`.
    """

    clean: Sequence[str] = ()
    mask_personal: bool = False

    def __bool__(self) -> bool:
        return bool(self.clean or self.mask_personal)

    def __call__(self, text: str) -> str:
        """Return the edited text."""
        text = clean_text(text, self.clean) if self.clean else text
        return mask_personal(text) if self.mask_personal else text

    def of(self, value: Any) -> Any:
        """Return a value of a row, in which each string is edited."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list | tuple):
            return [self.of(one) for one in value]
        return {name: self.of(one) for name, one in value.items()} if isinstance(value, Mapping) else value

    def identity(self) -> list[Any]:
        """Return everything that determines the edits; empty if there are none."""
        return [_VERSION, sorted(self.clean), self.mask_personal] if self else []


def clean_text(text: str, rules: Iterable[str]) -> str:
    """Return a text without markup, quoted mails or signatures; cleaning it again changes nothing."""
    chosen = [RULES[name] for name in RULES if name in set(rules)]
    made = text
    for _ in range(PASSES):
        before = made
        for rule in chosen:
            made = rule(made)
        if made == before:
            return made
    return text


def mask_personal(text: str) -> str:
    """Return a text with :data:`PLACEHOLDERS` for URLs with secrets, e-mail addresses, IBANs and phone numbers."""
    for _ in range(PASSES):
        before = text
        text = URL.sub(_mask_url, text) if "://" in text else text
        text = EMAIL.sub("[email]", text) if "@" in text else text
        text = PHONE.sub(_mask_phone, IBAN.sub(_mask_iban, text))
        if text == before:
            break
    return text


def count_placeholders(text: str, counts: dict[str, int]) -> None:
    """Add the numbers of the placeholders in a text to counts by name."""
    for placeholder in PLACEHOLDERS if "[" in text else ():
        if number := text.count(placeholder):
            counts[placeholder[1:-1]] = counts.get(placeholder[1:-1], 0) + number


def describe_masked(counts: Mapping[str, int]) -> str:
    """Return counts of placeholders for a message, such as ``12 email, 3 phone``."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.items()) or "none found"


def _strip_html(text: str) -> str:
    if "<" not in text and "&" not in text:
        return text
    made = ENTITY.sub(lambda m: unescape(m[0]) if m[1][0] == "#" else html5.get(f"{m[1]};", m[0]), text)
    for start, end in UNSHOWN:
        kept, place = [], 0
        while (opening := start.search(made, place)) and (closing := end.search(made, opening.end())):
            kept.append(made[place : opening.start()])
            place = closing.end()
        made = "".join([*kept, made[place:]])
    made = TAG.sub(_replace_tag, made)
    if made == text:
        return text
    lines = (line.strip() for line in made.replace("\xa0", " ").split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _replace_tag(match: re.Match[str]) -> str:
    name = (match[1] or "").lower()
    return "\n" if name in BREAKS else " " if name in ("td", "th") else ""


def _starts_quote(lines: Sequence[str], number: int) -> bool:
    """Return whether the rest of a mail, from a line on, is an older mail."""
    if ORIGINAL.match(lines[number]):
        return True
    return bool(SENDER.match(lines[number])) and sum(map(bool, map(HEADER.match, lines[number + 1 : number + 5]))) > 1


def _attribution(lines: Sequence[str], number: int) -> int:
    """Return how many lines, from a number on, say who wrote what follows: none, one, or two."""
    if not lines[number].lstrip().startswith(("On ", "Am ", "Le ", "El ", "Il ", "Op ", "Em ")):
        return 0
    joined = " ".join(line.strip() for line in lines[number : number + 2])
    return 1 if ATTRIBUTION.match(lines[number]) else 2 if ATTRIBUTION.match(joined) else 0


def _drop_quotes(text: str) -> str:
    lines, kept, number, has_text = text.split("\n"), list[str](), 0, False
    while number < len(lines):
        line = lines[number]
        if QUOTED.match(line):
            number += 1
        elif wrote := _attribution(lines, number):
            following = next((line for line in lines[number + wrote : number + wrote + 3] if line.strip()), "")
            if not QUOTED.match(following) and has_text:
                break
            number += wrote
        elif has_text and _starts_quote(lines, number):
            break
        else:
            kept.append(line)
            has_text = has_text or bool(line.strip())
            number += 1
    return text if len(kept) == len(lines) else "\n".join(kept).strip()


def _drop_signatures(text: str) -> str:
    lines = text.split("\n")
    quote = next((n for n, line in enumerate(lines) if QUOTED.match(line) or _starts_quote(lines, n)), len(lines))
    own = [line for line in lines[:quote] if not DEVICE.match(line)]
    first = next((number for number, line in enumerate(own) if line.strip()), 0)
    end = next((n for n in range(max(first + 1, len(own) - MAX_FOOTER), len(own)) if DASHES.match(own[n])), len(own))
    after = 0
    for number in range(end - 1, first, -1):
        line = own[number]
        end = number if CLOSING.match(line) else end
        after += bool(line.strip())
        if after > MAX_SIGNATURE or (line.rstrip().endswith((".", "?", "!")) and len(line.split()) > 5):
            break
    made = [*own[:end], *lines[quote:]]
    return text if len(made) == len(lines) else "\n".join(made).strip()


RULES: dict[str, Callable[[str], str]] = {"html": _strip_html, "quotes": _drop_quotes, "signatures": _drop_signatures}
"""What can be removed, in the order in which it is."""


def _mask_url(match: re.Match[str]) -> str:
    url = match[0].rstrip(".,;:!?)")
    mixed = (part for part in re.split(r"\W+", url) if not part.isalpha() and not part.isdigit())
    has_secret = SECRET.search(url) or any(len(part) > 19 for part in mixed)
    return f"[url]{match[0][len(url) :]}" if has_secret else match[0]


def _mask_iban(match: re.Match[str]) -> str:
    """Return a candidate with a placeholder for the beginning with the length and the check digits of an IBAN."""
    found, text = match[0], match.string
    ends = [n for n in range(len(found), 14, -1) if not text[match.start() + n : match.start() + n + 1].isalnum()]
    for end in ends:
        plain = re.sub(r"[ \-]", "", found[:end])
        digits = "".join(str(int(one, 36)) for one in plain[4:] + plain[:4])
        if len(plain) == IBAN_LENGTHS.get(plain[:2].upper()) and int(digits) % 97 == 1:
            return "[iban]" + found[end:]
    return found


def _mask_phone(match: re.Match[str]) -> str:
    """Return a candidate with a placeholder from where a phone number begins; digits next to it are masked, too."""
    number, word = APART.split(match["number"])[0], match["word"] or ""
    cut = number[-1:].isdigit() and match.string[match.end() : match.end() + 1].isalnum() and number == match["number"]
    ends = [one.end() for one in re.finditer(r"[0-9]+", number)][: -1 if cut else None]
    for begin in (one.end() for one in (re.finditer(r"^| ", number) if word else BEGIN.finditer(number))):
        if any(
            _is_phone(number[begin:end], bool(word) and not begin) for end in ends if begin < end < begin + MAX_PHONE
        ):
            return f"{word}{number[:begin]}[phone]{match['number'][ends[-1] :]}"
    return match[0]


def _is_phone(number: str, announced: bool) -> bool:
    number = number.lstrip("(")
    digits = re.sub(r"[^0-9]", "", number)
    if DATE.match(number):
        return False
    if number.startswith("+") or announced:
        return (8 if number.startswith("+") else 6) <= len(digits) <= 17
    parted = len(digits) < len(number)
    if digits.startswith("00"):
        return digits[2:3] != "0" and (11 if not parted else 9) <= len(digits) <= 17
    if digits.startswith("0"):
        return parted and 2 <= len(re.split("[^0-9]", number)[0]) <= 6 and 7 <= len(digits) <= 14
    return bool(AMERICAN.fullmatch(number))
