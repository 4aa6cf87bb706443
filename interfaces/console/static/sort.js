/* Sorts the rows of a table by a column; those that are folded change places with the others. */
export function sortRows(button) {
  const head = button.closest("th");
  const table = head.closest("table");
  const order = head.ariaSort === "ascending" ? "descending" : "ascending";
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const compare = (a, b) => a - b || a.localeCompare(b, undefined, { numeric: true });
  const sign = order === "ascending" ? 1 : -1;
  const bodies = [...table.tBodies].map((body) => [body, body.rows.length]);
  const rows = [...table.querySelectorAll("tbody tr")];
  const sorted = rows.sort((a, b) => sign * compare(text(a), text(b)));
  for (const one of table.querySelectorAll("th")) one.ariaSort = null;
  head.ariaSort = order;
  for (const [body, count] of bodies) body.append(...sorted.splice(0, count));
}
