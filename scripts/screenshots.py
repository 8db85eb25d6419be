"""Take pictures of reports as they look on a desktop, on a phone and in the dark, to compare them in a review.

    python scripts/screenshots.py docs/results/*/results.json --out /tmp/pictures
    python scripts/screenshots.py runs/study/report.html
    python scripts/screenshots.py docs/results/few-labels/results.json --top docs/images/report.png

Results are rendered first. For each report there are three PNG files: `NAME-desktop.png` (1,400 pixels wide),
`NAME-phone.png` (390 pixels) and `NAME-dark.png`. `--top` takes the picture of the README instead: the top of a
report, 1,280 pixels wide, down to the end of its result. Needs Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from acclimate.report import write_report  # noqa: E402
from acclimate.results.study import StudyResults  # noqa: E402
from tests.report.browser import Browser, chromium  # noqa: E402

VIEWS = {"desktop": (1400, False), "phone": (390, False), "dark": (1400, True)}
"""Width in pixels, and whether the reader prefers a dark page, of each picture."""
TOP, MARGIN = 1280, 12
"""Width of the picture of the top, and the space below the result, in pixels."""


def main() -> None:
    """Take the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="results.json or HTML files")
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="output folder")
    parser.add_argument("--top", type=Path, help="PNG file for the top of the first report, instead of the pictures")
    options = parser.parse_args()
    if chromium() is None:
        sys.exit("Chromium was not found; install 'chromium' or 'google-chrome'.")
    if options.top is None:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        try:
            for file in options.files:
                page, name = file, file.stem
                if file.suffix == ".json":
                    name = file.parent.name
                    page = write_report(StudyResults.load(file), Path(folder) / f"{name}.html")
                if options.top is not None:
                    browser.open(page, TOP)
                    end = browser.run("document.querySelector('section.verdict').getBoundingClientRect().bottom")
                    browser.open(page, TOP, round(end) + MARGIN)
                    browser.picture(options.top, whole=False)
                    break
                for view, (width, dark) in VIEWS.items():
                    browser.open(page, width, dark=dark)
                    picture = options.out / f"{name}-{view}.png"
                    browser.picture(picture)
                    sys.stdout.write(f"{picture} {browser.errors or ''}\n")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
