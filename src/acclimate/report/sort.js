"use strict";
document.documentElement.classList.add("script");
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const place = head.cellIndex, up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const empty = cell => cell.textContent.trim() === "–";
    const order = (a, b) => {
      const x = a.cells[place], y = b.cells[place];
      if (empty(x) || empty(y)) return empty(x) - empty(y);  // empty cells stay last
      const difference = "value" in x.dataset && "value" in y.dataset
        ? Number(x.dataset.value) - Number(y.dataset.value)
        : x.textContent.localeCompare(y.textContent, undefined, { numeric: true });
      return up ? difference : -difference;
    };
    body.append(...[...body.rows].sort(order));
  });
}
