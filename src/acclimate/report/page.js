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

const clean = cell => cell.textContent.trim().replaceAll("↕", "").replaceAll("\u00a0", " ").replaceAll("−", "-").replace(/^–$/, "");
const rowsOf = table => {
  const group = table.dataset.group;
  const head = [...(group ? [group] : []), ...[...table.tHead.rows[0].cells].map(clean)];
  const body = [...table.tBodies].flatMap(part => {
    const heading = part.querySelector(".group");
    const rows = [...part.rows].filter(row => row !== heading).map(row => [...row.cells].map(clean));
    return group ? rows.map(cells => [heading ? clean(heading) : "", ...cells]) : rows;
  });
  return [head, ...body];
};
const formats = {
  csv: rows => rows.map(row => row.map(text => /^\s*[=+\-@＝＋－＠]/.test(text) && isNaN(text) ? `'${text}` : text).map(text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text).join(",")).join("\n") + "\n",
  latex: rows => {
    const marks = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "→": "$\\to$", "<": "$<$", ">": "$>$" };
    const escape = text => text.replace(/[\\~^±→<>]|[&%$#_{}]/g, mark => marks[mark] ?? "\\" + mark).replace(/(^|\s)-(?=\d)/g, "$1$-$");
    const [head, ...body] = rows.map(row => row.map(escape).join(" & ") + " \\\\");
    return ["\\begin{tabular}{" + "l".repeat(rows[0].length) + "}", "\\toprule", head, "\\midrule", ...body, "\\bottomrule", "\\end{tabular}", ""].join("\n");
  },
};
const copy = async text => {
  try { await navigator.clipboard.writeText(text); } catch {  // no permission, as for some local files
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text; area.select(); document.execCommand("copy"); area.remove();
  }
};
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const name = button.textContent, table = button.closest(".table")?.querySelector("table");
    await copy(table ? formats[button.dataset.copy](rowsOf(table)) : button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = name; }, 1500);
  });
}
