"""What is removed from texts and what is masked in them, and that text without either stays as it is."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acclimate.data.editing import PLACEHOLDERS, RULES, TextEdits, clean_text, count_placeholders, mask_personal

IBANS = ("DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "de89-3704-0044-0532-0130-00")
PHONES = ("+49 30 1234567", "0049301234567", "0170/1234567", "(030) 123 45 67", "555-123-4567", "(555) 123-4567")
EMAILS = ("a.b+c@x-y.co.uk", "jürgen@müller.de", "o_1%2@mail.example.com")
URLS = ("https://u:p@h/x", "https://h/?a=1&access_token=abc", "ftp://h/reset/3f9adc0012abcd77ee99", "http://h/#sid=12")
OWN = {"email": EMAILS, "phone": PHONES, "iban": IBANS, "url": URLS}
PIECES = st.sampled_from(
    [
        *("<p>", "</P>", "<br/>", "<", ">", "<b", "<style>", "</style>", "<!--", "-->", "&amp;", "&", "lt;", "&#116;"),
        *("\n", "\r\n", "> ", ">", "-- \n", "On Monday, Bob wrote:\n", "From: a\n", "To: b\n", "Subject: c\n"),
        *("Best regards,\n", "Mit freundlichen Grüßen\n", "Sent from my iPhone\n", "-----Original Message-----\n"),
        *("@", ".", "://", "?token=", "+", "0", "17", "1234567", "DE89", "/", "(", ")", "-", " ", "[", "]", "a", "ß"),
        *(one for found in OWN.values() for one in found),
        *PLACEHOLDERS,
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join)
PROSE = st.lists(st.from_regex(r"[a-zäöü]{2,9}[,;]?", fullmatch=True), min_size=1, max_size=30).map(" ".join)


@settings(max_examples=300)
@given(text=TEXTS, rules=st.sets(st.sampled_from(sorted(RULES))))
@example(text="<<b>b>x &amp;lt;br&amp;gt;", rules={"html"})
def test_cleaning_never_fails_and_happens_once(text, rules):
    once = clean_text(text, rules)
    assert clean_text(once, rules) == once and len(once) <= len(text) + text.count("<")


@settings(max_examples=300)
@given(text=TEXTS)
def test_masking_never_fails_and_happens_once(text):
    once = mask_personal(text)
    assert mask_personal(once) == once


@given(text=PROSE, rules=st.sets(st.sampled_from(sorted(RULES))))
@example(text="a < b, c > d, List<String>, <john>, MFG line 3, AT&T, &c.", rules=set(RULES))
@example(text="From: a\nTo: b\nSubject: c\n\nThe mail itself.\n>50 users", rules=set(RULES))
@example(text="1.000.000 Euro, 0,5 %, 2024-01-02 10:30, 01.02.2024, 12345678, 3.141592653, 10.0.0.1", rules=set(RULES))
@example(text="ISBN 978-3-16-148410-0, DE89370400440532013001, https://h/page?id=3, @user, a@b", rules=set(RULES))
def test_text_without_markup_mails_or_personal_data_stays(text, rules):
    assert TextEdits(sorted(rules), True)(text) == text


@given(before=PROSE, after=PROSE)
def test_personal_data_are_replaced_wherever_they_are(before, after):
    for kind, value in ((name, one) for name, found in OWN.items() for one in found):
        for around in ("{} {} {}", "{}\n{}\n{}", "{} <{}> {}", "{}: {}, {}"):
            made = mask_personal(around.format(before, value, after))
            counts: dict[str, int] = {}
            count_placeholders(made, counts)
            assert made == around.format(before, f"[{kind}]", after) and counts == {kind: 1}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Tel.: 123456, Fax 98 76 54", "Tel.: [phone], Fax [phone]"),
        ("am 01.02.2024 030-1234567. 3 Uhr", "am 01.02.2024 [phone]. 3 Uhr"),
        ("030 123456/0170 1234567", "[phone]"),
        (f"{IBANS[0]} BIC COBADEFF {IBANS[1]}", "[iban] BIC COBADEFF [iban]"),
        ("mailto:a@b.de.", "mailto:[email]."),
    ],
)
def test_what_is_next_to_personal_data(text, masked):
    assert mask_personal(text) == masked


MAIL = "Hi Bob,\n\nit is broken. Please help.\n\nBest regards,\nJohn Smith\nTel: 030 1234567\n\n"
QUOTE = "On Mon, Jan 1, 2024 at 10:00 AM Bob <bob@x.de>\nwrote:\n> What is?\n> Bob\n"
OUTLOOK = "Von: Bob\nGesendet: Montag\nAn: John\nBetreff: AW\n\nHallo, was ist kaputt?"
BODY = "Hi Bob,\n\nit is broken. Please help."


@pytest.mark.parametrize(
    ("text", "rules", "cleaned"),
    [
        ("<p>Gr&uuml;&szlig;e</p><br>a&nbsp;b<style>p {}</style> &lt;i&gt;c&lt;/i&gt;", "html", "Grüße\n\na b c"),
        ("<table><tr><td>x</td><td>y</td></tr></table>\n<john@x.de>", "html", "x  y\n\n<john@x.de>"),
        (MAIL + QUOTE, "quotes signatures", BODY),
        (MAIL + OUTLOOK, "quotes signatures", BODY),
        (MAIL + OUTLOOK, "signatures", f"{BODY}\n\n{OUTLOOK}"),
        (MAIL + QUOTE + "\nBelow.", "quotes", f"{MAIL}\nBelow."),
        (f"> Was?\nDas.\n> Wann?\nHeute.\n\n{'-' * 5}Original Message{'-' * 5}\nAlt", "quotes", "Das.\nHeute."),
        (BODY + "\n-- \nJohn\nThis mail is secret and you must delete it now.", "signatures", BODY),
        (BODY + "\n\nVon meinem iPhone gesendet", "signatures", BODY),
        ("Best regards to all\nKind regards\nBut this is a whole sentence of the mail.", "signatures", None),
    ],
)
def test_mails_and_markup(text, rules, cleaned):
    assert clean_text(text, rules.split()) == (text if cleaned is None else cleaned)


HOSTILE = (
    *(
        "a",
        "a@",
        "a.",
        "0 ",
        "<",
        "&",
        "&amp;",
        "://:",
        "http://x?a=b&",
        ";",
        "1",
        "1 ",
        "+1 ",
        "DE89 ",
        "DE89",
        "\n",
        ">",
    ),
    *(">\n", "On a wrote ", "On wrote\n", "regards\n", " ", "From: x\n", "<script>", "x@b.", "tel 1 ", "<p ", "--\n"),
)


def seconds(text: str) -> float:
    start = time.process_time()
    TextEdits(tuple(RULES), True)(text)
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("unit", [*HOSTILE, *("<b>|" + one for one in HOSTILE)], ids=repr)
def test_time_is_linear_in_the_length_of_a_text(unit):
    start, _, unit = unit.rpartition("|")
    short, long = (start + unit * (size // len(unit)) for size in (20_000, 160_000))
    assert seconds(long) < 0.2 + 24 * seconds(short)


@pytest.mark.parametrize("text", ["<" * 30_000 + "b>" * 30_000, "a@" + "b." * 50_000, "http://" + "://:" * 30_000])
def test_a_hostile_line_takes_no_time(text):
    assert seconds(text) < 2
