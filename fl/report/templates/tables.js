// Tables of reports and of the site: the head of a column sorts, a field filters the rows.
const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, min: 60, h: 3600, days: 86400 };
function amount(cell) {
  const text = cell.firstChild ? cell.innerText.replace(/[\u2212\u2013]/g, "-").replace(/,/g, "") : "";
  const found = text.match(/^[<\s]*([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([a-zA-Z]*)/);
  if (!found) return NaN;
  const [, digits, unit] = found;
  return parseFloat(digits) * (units[unit] || units[unit.replace(/B$/, "")] || 1);
}
function order(column, isText, direction) {
  return (a, b) => {
    const [first, second] = [a.cells[column], b.cells[column]];
    const [x, y] = isText ? [NaN, NaN] : [amount(first), amount(second)];
    if (isNaN(x) && isNaN(y)) return direction * first.innerText.localeCompare(second.innerText);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return direction * (x - y);
  };
}
// Rows of a table that can be sorted and filtered, in all its groups.
function filterable(table) {
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
  return rows.filter((row) => !row.matches(".group, .reference"));
}
// Sorts the rows of each group: down, up, as they were.
function sort(table, head, column) {
  const next = { none: "descending", descending: "ascending", ascending: "none" };
  const state = next[head.getAttribute("aria-sort") || "none"];
  table.querySelectorAll("thead th").forEach((th) => th.removeAttribute("aria-sort"));
  if (state !== "none") head.setAttribute("aria-sort", state);
  const isText = column === 0 || head.classList.contains("text");
  const compare = order(column, isText, state === "ascending" ? 1 : -1);
  const all = filterable(table);
  for (const body of table.tBodies) {
    const rows = all.filter((row) => row.parentElement === body);
    rows.sort((a, b) => (state === "none" ? 0 : compare(a, b)) || a.dataset.place - b.dataset.place);
    const references = body.querySelector(".reference");
    rows.forEach((row) => body.insertBefore(row, references));
  }
}
function makeSortable(table) {
  filterable(table).forEach((row, place) => { row.dataset.place = place; });
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.title = "Sort by this column";
    button.addEventListener("click", () => sort(table, head, column));
    head.append(button);
  });
}
// The text of a row and of its group in which words are found: without its numbers.
function words(row) {
  const cells = [...row.cells].flatMap((cell, i) =>
    i === 0 || isNaN(amount(cell)) ? [cell] : [...cell.querySelectorAll("small")]
  );
  const group = row.parentElement.querySelector(".group");
  return [group, ...cells].map((part) => part?.textContent ?? "").join(" ").toLowerCase();
}
// Writes a field before a place: rows stay whose words have all parts of what is typed.
// Conditions are further functions of a row. Returns the block of the field, and what applies it.
function addFilter(table, place, conditions = []) {
  const rows = filterable(table);
  const texts = new Map(rows.map((row) => [row, words(row)]));
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Filter rows, for example: Fed";
  field.setAttribute("aria-label", "Filter the rows of the next table");
  const count = document.createElement("output");
  const apply = () => {
    const parts = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const isFound = parts.every((part) => texts.get(row).includes(part));
      row.hidden = !(isFound && conditions.every((condition) => condition(row)));
    }
    const shown = rows.filter((row) => !row.hidden);
    for (const head of table.querySelectorAll(".group")) {
      head.hidden = !shown.some((row) => row.parentElement === head.parentElement);
    }
    count.textContent = `${shown.length} of ${rows.length} rows`;
  };
  field.addEventListener("input", apply);
  const block = document.createElement("div");
  block.className = "row-filters";
  block.append(field, count);
  place.before(block);
  apply();
  return [block, apply];
}
