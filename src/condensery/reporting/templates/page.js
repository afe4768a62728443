// Clicks on a heading sort each part of its table: descending, ascending, then unsorted. A link to a folded place unfolds it.
"use strict";
const byText = new Intl.Collator(undefined, { numeric: true }).compare;
const text = (row, column) => row.cells[column]?.textContent.trim() ?? "";
const number = (shown) => parseFloat(/^[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?(?![\w:.-])/.exec(shown)?.[0].replaceAll(",", ""));

function sort(heading) {
  const table = heading.closest("table");
  const now = { none: "descending", descending: "ascending", ascending: "none" }[heading.ariaSort ?? "none"];
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  if (now !== "none") heading.setAttribute("aria-sort", now);
  const down = now === "descending" ? -1 : 1, column = heading.cellIndex;
  for (const body of table.tBodies) {
    body.lines ??= [...body.rows].filter((row) => row.cells.length > 1);
    const known = (row) => !["", "\u2013"].includes(text(row, column));
    const numbers = body.lines.filter(known).every((row) => !isNaN(number(text(row, column))));
    const order = (a, b) => numbers ? number(text(a, column)) - number(text(b, column)) : byText(text(a, column), text(b, column));
    const sorted = now === "none" ? body.lines : [
      ...body.lines.filter(known).sort((a, b) => down * order(a, b)), ...body.lines.filter((row) => !known(row)),
    ];
    body.append(...sorted);
  }
}

for (const heading of document.querySelectorAll(".scroll > table > thead th")) {
  const button = document.createElement("button");
  button.append(...heading.childNodes);
  button.type = "button";
  button.addEventListener("click", () => sort(heading));
  heading.append(button);
}

function unfold() {
  const place = document.getElementById(location.hash.slice(1));
  for (let folded = place?.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
  place?.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
