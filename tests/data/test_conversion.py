from __future__ import annotations

import base64
import logging
import time
import zipfile
import zlib
from pathlib import Path

import pytest

from acclimate.base.errors import UserError
from acclimate.data import conversion, opening
from acclimate.data.documents import Corpus
from acclimate.data.readers import read_records
from tests.cases import each

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"


def write_docx(path: Path, paragraphs: list[str]) -> Path:
    """Write the smallest Word file."""
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{PACKAGE}/content-types">'
            f'<Override PartName="/document.xml" ContentType="{main}"/></Types>',
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r" Type="{OFFICE}" '
            'Target="document.xml"/></Relationships>',
        )
        file.writestr("document.xml", f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>')
    return path


def write_pdf(path: Path, lines: list[str], extra: str = "") -> Path:
    """Write the smallest PDF: one page with a text line per line."""
    shown = " ".join(f"({line}) Tj T*" for line in lines)
    stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET" if lines else ""
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(stream)}>>\nstream\n{stream}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    data, places = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    data += f"xref\n0 {size}\n0000000000 65535 f \n{table}"
    trailer = f"trailer\n<</Size {size}/Root 1 0 R{extra}>>\nstartxref\n{data.index('xref')}\n%%EOF\n"
    path.write_bytes((data + trailer).encode("latin-1"))
    return path


def write_epub(path: Path, text: str) -> Path:
    """Write the smallest book with one chapter."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile '
            'full-path="book.opf"/></rootfiles></container>',
        )
        file.writestr(
            "book.opf",
            '<package xmlns="http://www.idpf.org/2007/opf"><metadata/><manifest><item id="c" href="c.xhtml" '
            'media-type="application/xhtml+xml"/></manifest><spine><itemref idref="c"/></spine></package>',
        )
        file.writestr("c.xhtml", f"<html><body><p>{text}</p></body></html>")
    return path


ENCRYPTED = "/Encrypt<</Filter/Standard/V 1/R 2/P -44/O<{0}>/U<{0}>>>/ID[<00><00>]".format("00" * 32)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mixed(tmp_path):
    """A folder with a file of each kind, readable or not."""
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "a.txt").write_text("plain")
    write_docx(folder / "b.docx", ["The soup", "was cold."])
    write_pdf(folder / "c.pdf", ["One day the adapta-", "tion ended."])
    write_epub(folder / "d.epub", "Call me a waiter.")
    (folder / "e.html").write_text("<p>The <b>bread</b></p>")
    (folder / "f.md").write_text("# Menu\n\nTea")
    write_pdf(folder / "scan.pdf", [])
    write_pdf(folder / "secret.pdf", ["x"], ENCRYPTED)
    (folder / "broken.pdf").write_bytes((folder / "c.pdf").read_bytes()[:200])
    (folder / "empty.docx").touch()
    (folder / "old.docx").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(99))
    return folder


TEXTS = [
    "plain",
    "The soup\n\nwas cold.",
    "One day the adaptation\nended.",
    "Call me a waiter.",
    "The bread",
    "# Menu\n\nTea",
]


def test_documents_are_read_and_unreadable_ones_counted_and_named(mixed, cache, caplog):
    corpus = Corpus(mixed)
    assert list(corpus) == TEXTS
    assert corpus.report.broken == 5
    problems = {Path(line.split(":")[0]).name: line.split(":1: ")[1] for line in corpus.report.problems}
    assert problems["scan.pdf"] == "no text; scanned pages have to be read by OCR first"
    assert problems["secret.pdf"] == "the document is encrypted; save it without a password"
    assert problems["broken.pdf"].startswith("the document is damaged or not pdf (")
    assert problems["empty.docx"] == "the file is empty"
    assert problems["old.docx"].startswith("the document is encrypted or of an older format")
    assert not caplog.text


def test_conversions_are_kept_by_content(mixed, cache, monkeypatch):
    first = list(Corpus(mixed))
    fingerprint = Corpus(mixed).fingerprint
    monkeypatch.setattr(conversion._Worker, "convert", lambda *given: ("converted again", ""))
    assert list(Corpus(mixed)) == first
    (mixed / "e.html").write_text("<p>The <b>cake</b></p>")
    assert list(Corpus(mixed)) == [*first[:4], "converted again", first[5]]
    assert Corpus(mixed).fingerprint != fingerprint
    next(cache.glob("documents/*/*.json")).write_text("{")  # damaged
    assert "converted again" in list(Corpus(mixed))


def test_files_that_need_an_extra_are_named(mixed, cache, monkeypatch, caplog):
    monkeypatch.setattr(opening, "find_spec", lambda module: None)
    opening.missing_extra.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "acclimate"):
            assert list(Corpus(mixed)) == ["plain", "# Menu\n\nTea"]
        assert "9 files are left out, without a further package (pip install 'acclimate[documents]')" in caplog.text
        for source in ("c.pdf", "*.pdf"):
            with pytest.raises(UserError, match=r"c\.pdf' cannot be read .* pip install 'acclimate\[documents\]'"):
                Corpus(str(mixed / source).replace("*", "[c]" if source == "c.pdf" else "[c-z]*"))
        (mixed / "a.xlsx").touch()
        with pytest.raises(UserError, match=r"pip install 'acclimate\[excel\]'"):
            Corpus(mixed / "a.xlsx")
    finally:
        opening.missing_extra.cache_clear()


@each(
    ("name", "content", "expected"),
    [
        ("a.md", "---\ntitle: x\n---\n# Head\n<!-- a\nnote -->\ntext\n\n---\nend", "# Head\n\ntext\n\n---\nend"),
        ("a.md", "---\r\n---\r\ntext", "text"),
        ("a.md", "a\n---\nb\n---\n", "a\n---\nb\n---"),
        ("a.htm", "<h1>A</h1><script>x</script><p>a_b *c* <a href='u'>link</a><img src='i' alt='x'></p>", None),
    ],
)
def test_what_is_stripped(tmp_path, monkeypatch, name, content, expected):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    (tmp_path / name).write_bytes(content.encode())
    assert list(read_records(tmp_path / name)) == [(1, expected or "# A\n\na_b *c* link", "")]


@each(("encoding", "given"), [("utf-8", None), ("cp1251", "cp1251"), ("utf-16", None), ("cp1251", None)])
def test_encodings_of_html(tmp_path, monkeypatch, encoding, given):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    meta = f"<meta charset='{encoding}'>" if encoding == "cp1251" and not given else ""
    (tmp_path / "a.html").write_bytes(f"<html>{meta}<body>Суп был холодный</body></html>".encode(encoding))
    assert list(read_records(tmp_path / "a.html", encoding=given)) == [(1, "Суп был холодный", "")]


@each(
    ("text", "expected"),
    [
        ("adapta-\ntion of", "adaptation\nof"),
        ("adapta-\ntion.) Of", "adaptation.)\nOf"),
        ("a well-\nknown and well-known", "a well-known\nand well-known"),
        ("a well-\nknown, well-known, wellknown", "a wellknown,\nwell-known, wellknown"),
        ("Foo-\nBar x", "Foo-Bar\nx"),
        ("1 -\nx", "1 -\nx"),
    ],
)
def test_hyphenation(text, expected):
    assert conversion._join_hyphenated(text) == expected


def test_a_real_pdf_with_ligatures_and_pages(tmp_path, cache):
    import matplotlib
    from matplotlib import pyplot
    from matplotlib.backends.backend_pdf import PdfPages

    with matplotlib.rc_context({"pdf.fonttype": 42}), PdfPages(tmp_path / "a.pdf") as pages:
        for text in ("an e\ufb03cient \ufb01sh", "größer"):
            figure = pyplot.figure()
            figure.text(0.1, 0.5, text)
            pages.savefig(figure)
            pyplot.close(figure)
    assert list(read_records(tmp_path / "a.pdf")) == [(1, "an efficient fish\n\ngrößer", "")]


def test_a_converted_text_has_no_data_of_images(tmp_path, cache):
    image = base64.b64encode(bytes(99)).decode()
    (tmp_path / "a.html").write_text(f"<p>before <img src='data:image/png;base64,{image}'> after</p>")
    assert [text.split() for _, text, _ in read_records(tmp_path / "a.html")] == [["before", "after"]]


def pdf_bomb(path: Path) -> None:
    """A stream that is compressed twice, of 64 MB."""
    packed = zlib.compress(zlib.compress(b"BT /F1 12 Tf (a) Tj ET " * 2_800_000, 9), 9).decode("latin-1")
    write_pdf(path, [])
    text = path.read_bytes().decode("latin-1")
    filters = f"<</Length {len(packed)}/Filter[/FlateDecode/FlateDecode]>>\nstream\n{packed}\nendstream"
    path.write_bytes(text.replace("<</Length 0>>\nstream\n\nendstream", filters).encode("latin-1"))


BOMBS = {
    "a.docx": (lambda path: write_docx(path, ["a" * 2**20] * 65), "MB of markup; the limit is 64"),
    "b.docx": (lambda path: nested_docx(path, 5_000), "b.docx:1: "),  # too deep, or too much memory
    "c.pdf": (pdf_bomb, "its conversion takes"),
}
"""Files that are small, or seem harmless, and how each is reported."""


def nested_docx(path: Path, depth: int) -> None:
    start, end = "<w:p><w:r>", "</w:r></w:p>"
    write_docx(path, ["a</w:t></w:r></w:p>" + start * depth + end * depth + "<w:p><w:r><w:t>"])


@pytest.mark.slow
def test_a_bomb_is_counted_as_broken_and_the_others_are_read(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(conversion, "SECONDS", 1)
    monkeypatch.setattr(conversion, "MAX_MEMORY", 2**28)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, (write, _) in BOMBS.items():
        write(folder / name)
    for name in ("aa.docx", "z.docx"):
        write_docx(folder / name, ["Soup"])
    corpus = Corpus(folder, dedup=False)
    assert list(corpus) == ["Soup", "Soup"] and corpus.report.broken == len(BOMBS)
    problems = {Path(line.split(":")[0]).name: line for line in corpus.report.problems}
    for name, (_, said) in BOMBS.items():
        assert said in problems[name]


def test_a_converter_that_is_killed_is_replaced(tmp_path, cache):
    for name in ("a.html", "b.html"):
        (tmp_path / name).write_text(f"<p>{name}</p>")
    assert list(read_records(tmp_path / "a.html")) == [(1, "a.html", "")]
    conversion._worker()._process.kill()
    assert "ends the converter" in next(read_records(tmp_path / "b.html"))[2]
    (tmp_path / "c.html").write_text("<p>c</p>")
    assert list(read_records(tmp_path / "c.html")) == [(1, "c", "")]


@each(("text", "kept"), [
    ("---\ntitle: x\n---\nBody.", "Body."),
    ("---\n# note\n'my-key': x\nlist:\n- a\n---\nBody.", "Body."),
    ("---\r\ntags:\r\n- a\r\n---\r\nBody.", "Body."),
    ("---\n---\nBody.", "Body."),
    ("---\n\nA text after a rule.\n\n---\n\nMore.", None),
    ("---\nSome words first: then more.\n---\nMore.", None),
])  # fmt: skip
def test_text_between_two_rules_is_text_unless_it_has_keys(text, kept):
    assert conversion.strip_markdown(text) == (text if kept is None else kept)


@each("text", ["<!--" * 250_000, "ab" * 500_000, "a-\n" * 300_000, "a-" * 500_000, "---\n" * 250_000])
def test_a_megabyte_takes_less_than_a_second(text):
    start = time.process_time()
    conversion.strip_markdown(text)
    conversion._join_hyphenated(text)
    assert time.process_time() - start < 2
